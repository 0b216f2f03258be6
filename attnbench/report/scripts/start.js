// All parts are there: show what the URL asks for, then unpack the figures and Plotly, and draw.
(() => {
  const { $, el, meta } = page;
  const note = $("explorer-note");

  /** The cases of each arm in each chart by T, and the T of each chart. */
  function index(data) {
    page.data = data;
    page.cases = new Map();
    page.xs = new Map(meta.panels.map((_, panel) => [panel, []]));
    data.x.forEach((x, i) => {
      const panel = meta.rows.panel[i];
      const pair = panel * meta.arms.length + meta.rows.arm[i];
      if (!page.cases.has(pair)) page.cases.set(pair, []);
      page.cases.get(pair).push(i);
      page.xs.get(panel).push(x);
    });
    for (const cases of page.cases.values()) cases.sort((i, j) => data.x[i] - data.x[j]);
    for (const [panel, xs] of page.xs) {
      const ascending = [...new Set(xs)].sort((a, b) => a - b);
      page.xs.set(panel, ascending);
    }
    const reasons = (pairs) => new Map(pairs.map(([i, text]) => [i, data.texts[text]]));
    data.why = Object.fromEntries(Object.entries(data.empty).map(([name, pairs]) => [name, reasons(pairs)]));
  }

  /** Make every case in the table of all cases a button that copies the command that reproduces it. */
  function nameCommands(cases) {
    const table = $("all"), heads = Array.from(table.tHead.rows[0].cells, (cell) => cell.textContent);
    for (const [i, row] of Array.from(table.tBodies[0].rows).slice(0, cases.length).entries())
      row.cells[heads.indexOf("case")].replaceChildren(page.copyButton(cases[i], page.commandOf("repro", i)));
  }

  async function load() {
    if (!("DecompressionStream" in window)) {
      note.textContent =
        "This browser cannot unpack the charts: it has no DecompressionStream (Chrome 80, Firefox 113 and " +
        "Safari 16.4 have it). The pictures and tables below are complete.";
      return;
    }
    index(JSON.parse(await page.unpack("data")));
    nameCommands(page.data.case);
    if ($("plotly").textContent.trim()) {
      document.head.append(el("script", { text: await page.unpack("plotly") }));
      page.canDraw = true;
      page.listen(page.draw);
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", page.draw);
      await page.draw();
    } else {
      note.textContent =
        "This report was written without Plotly, so there are no charts to explore here: pip install plotly, then " +
        "attnbench report again. The pictures and tables below are complete.";
    }
    page.isReady = true;
    page.dataReady();
  }

  for (const element of document.querySelectorAll(".needs-script, #explorer")) element.hidden = false;
  page.start();
  load().catch((error) => {
    note.textContent = `The charts could not be made: ${error.message}. The pictures and tables below are complete.`;
    throw error;
  });
})();
