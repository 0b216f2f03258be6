const cells = JSON.parse(document.getElementById('data').textContent);
const box = document.getElementById('cell');
let pinned = null;

const quoted = text => "'" + text.replaceAll("'", "'\\''") + "'";
const folder = location.protocol === 'file:' ? decodeURIComponent(location.pathname).replace(/\/[^/]*$/, '') : 'FOLDER';

function command(c) {  // what no plug-in claims has no file
  if (c.verdict === 'unsupported') return '';
  return `attnbench repro ${quoted(folder)} ${quoted(c.arm + ':' + c.probe)}`;
}

function facts(c) {
  const error = c.error === null ? '' : c.error.toPrecision(3) + ', ' + c.limit + ' is allowed';
  return [['probe', c.probe], ['shows', c.shows], ['problem', c.problem], ['arm', c.arm], ['verdict', c.verdict],
    ['how', c.how], ['its words', c.words], ['error', error], ['expected', c.expected], ['got', c.got],
    ['as a zip', command(c)]].filter(f => f[1] !== '');
}

function show(button) {
  const list = box.querySelector('dl');
  list.replaceChildren(...facts(cells[+button.dataset.i]).map(([name, text]) => {
    const row = document.createElement('div');
    for (const [tag, words] of [['dt', name], ['dd', text]])
      row.appendChild(document.createElement(tag)).textContent = words;
    return row;
  }));
  box.hidden = false;
}

function pin(button) {
  if (pinned) pinned.setAttribute('aria-pressed', 'false');
  pinned = button;
  if (!button) { box.hidden = true; return; }
  button.setAttribute('aria-pressed', 'true');
  show(button);
}

function neighbour(button, key) {
  const td = button.parentElement, tr = td.parentElement, i = [...tr.cells].indexOf(td);
  const rows = {ArrowDown: tr.nextElementSibling, ArrowUp: tr.previousElementSibling};
  const to = key in rows ? rows[key] && rows[key].cells[i]
    : {ArrowRight: td.nextElementSibling, ArrowLeft: td.previousElementSibling}[key];
  return to && to.querySelector('button');
}

for (const table of document.querySelectorAll('.matrix')) {
  const of = event => event.target.closest('button');
  for (const kind of ['mouseover', 'focusin'])
    table.addEventListener(kind, event => { if (of(event) && !pinned) show(of(event)); });
  table.addEventListener('click', event => { if (of(event)) pin(pinned === of(event) ? null : of(event)); });
  table.addEventListener('keydown', event => {
    const next = of(event) && neighbour(of(event), event.key);
    if (!next) return;
    event.preventDefault();
    next.focus();
    if (pinned) pin(next);
  });
}
document.addEventListener('keydown', event => { if (event.key === 'Escape') pin(null); });
box.querySelector('button').addEventListener('click', () => pin(null));
