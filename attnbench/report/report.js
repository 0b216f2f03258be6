(function () {
  var table = document.getElementById("all"), body = table.tBodies[0], rows = Array.from(body.rows);
  var box = document.getElementById("filter"), shown = document.getElementById("shown");
  var units = { B: 1, KiB: 1024, MiB: 1048576, GiB: 1073741824, TiB: 1099511627776 };
  function value(row, column) {
    var text = row.cells[column].textContent, number = parseFloat(text.replace(/,/g, "")), unit = text.split(" ")[1];
    return text === "" ? null : isNaN(number) ? text : number * (units[unit] || 1);
  }
  function compare(a, b) {
    if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1;
    return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
  }
  Array.from(table.tHead.rows[0].cells).forEach(function (head, column) {
    var button = document.createElement("button"), up = false;
    button.textContent = head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", function () {
      up = !up;
      rows.sort(function (a, b) { return (up ? 1 : -1) * compare(value(a, column), value(b, column)); });
      body.append.apply(body, rows);
      Array.from(head.parentNode.cells).forEach(function (cell) { cell.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
    });
  });
  box.addEventListener("input", function () {
    var words = box.value.toLowerCase().split(/\s+/), count = 0;
    rows.forEach(function (row) {
      var text = row.textContent.toLowerCase();
      row.hidden = !words.every(function (word) { return text.includes(word); });
      count += row.hidden ? 0 : 1;
    });
    shown.textContent = count + " of " + rows.length;
  });
  document.querySelector(".filter").hidden = false;
})();
