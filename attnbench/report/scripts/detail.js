// One arm close up: its figures at one T, its raw samples by round, and its law.
(() => {
  const { $, el, meta, state, change, chart, style } = page;
  const dialog = $("detail"),
    title = $("detail-title"),
    pickPanel = $("detail-panel"),
    pickX = $("detail-x");
  const facts = $("detail-facts"),
    plot = $("detail-samples"),
    words = $("detail-words"),
    visitsTable = $("detail-visits");
  const lawPlot = $("detail-law"),
    lawWords = $("detail-law-words"),
    commands = $("detail-commands");
  let samples = null;

  const caseAt = ({ arm, panel, x }) =>
    (page.cases.get(panel * meta.arms.length + arm) || []).find((i) => page.data.x[i] === x);

  /** Open the panel of an arm; without a place at the first chart that shows it, in the middle of its timed T. */
  page.openDetail = (arm, panel, x) => {
    if (!page.cases) return;
    const panels = meta.panels.map((_, p) => p).filter((p) => page.cases.has(p * meta.arms.length + arm));
    const chosen = panel ?? panels.find((p) => page.seen.panels[p]) ?? panels[0];
    const of = page.cases.get(chosen * meta.arms.length + arm) || [];
    const timed = of.filter((i) => page.data.latency[i] !== null);
    const at = x ?? page.data.x[(timed.length ? timed : of)[Math.floor((timed.length ? timed : of).length / 2)]];
    change((s) => {
      s.detail = { arm, panel: chosen, x: at };
    });
  };

  pickPanel.addEventListener("change", () => page.openDetail(state.detail.arm, Number(pickPanel.value)));
  pickX.addEventListener("change", () =>
    change((s) => {
      s.detail = { ...s.detail, x: Number(pickX.value) };
    }),
  );
  $("detail-close").addEventListener("click", () => dialog.close());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  dialog.addEventListener("close", () => {
    if (state.detail)
      change((s) => {
        s.detail = null;
      });
  });

  async function showDetail() {
    if (!state.detail || !page.cases) {
      if (dialog.open) dialog.close();
      return;
    }
    const { arm, panel, x } = state.detail,
      i = caseAt(state.detail);
    if (i === undefined) {
      // a link to something that this report does not hold
      if (page.cases.has(panel * meta.arms.length + arm)) page.openDetail(arm, panel);
      else page.openDetail(arm);
      return;
    }
    if (!dialog.open) dialog.showModal();
    title.replaceChildren(page.swatch(meta.arms[arm]), meta.arms[arm].name);
    const panels = meta.panels.map((_, p) => p).filter((p) => page.cases.has(p * meta.arms.length + arm));
    pickPanel.replaceChildren(
      ...panels.map((p) =>
        el("option", { value: p, text: `${meta.panels[p].title}: ${meta.panels[p].facet}`, selected: p === panel }),
      ),
    );
    const of = page.cases.get(panel * meta.arms.length + arm);
    pickX.replaceChildren(
      ...of.map((n) =>
        el("option", {
          value: page.data.x[n],
          text: page.data.x[n].toLocaleString("en"),
          selected: page.data.x[n] === x,
        }),
      ),
    );
    $("detail-x-label").textContent = meta.panels[panel].x;
    facts.replaceChildren(page.factList(i));
    commands.replaceChildren(command("as a zip to paste upstream", "repro", i), command("in sentences", "explain", i));
    await showSamples(i);
    await showLaw(arm, panel, of);
    dialog.dataset.shown = `${arm} ${panel} ${x}`;
  }

  page.commandOf = (name, i) => `attnbench ${name} ${meta.panels[meta.rows.panel[i]].folder} ${page.data.case[i]}`;

  /** A button that copies a text; without a clipboard the words of `line` (itself if none) are marked, for the keyboard. */
  page.copyButton = (label, text, line) => {
    const copy = el("button", { type: "button", class: "copy", text: label, title: text, "aria-label": `Copy: ${text}` });
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(text);
        copy.textContent = "Copied";
      } catch {
        copy.textContent = line ? "Marked" : text;
        getSelection().selectAllChildren(line ?? copy);
      }
    });
    copy.addEventListener("blur", () => (copy.textContent = label));
    return copy;
  };

  /** A command about this case, with a button that copies it. */
  function command(what, name, i) {
    const text = page.commandOf(name, i), line = el("code", { text });
    return el("p", { class: "command" }, el("span", { class: "muted", text: what }), line, page.copyButton("Copy", text, line));
  }

  // ---- samples

  async function loadSamples() {
    const packed = JSON.parse(await page.unpack("samples"));
    const workers = new Map();
    let at = 0;
    packed.case.forEach((i, w) => {
      const worker = {
        replica: packed.replica[w],
        median: packed.median_us[w] / 1e3,
        rounds: [],
        medians: [],
        lows: [],
        highs: [],
      };
      for (let n = 0, round = 0; n < packed.count[w]; n++, at++) {
        round += packed.rounds[at];
        const unit = worker.median / 1000;
        worker.rounds.push(round);
        worker.medians.push(packed.medians[at] * unit);
        worker.lows.push((packed.medians[at] - packed.below[at]) * unit);
        worker.highs.push((packed.medians[at] + packed.above[at]) * unit);
      }
      workers.set(i, [...(workers.get(i) || []), worker]);
    });
    const absent = new Map(Object.entries(packed.absent).flatMap(([reason, of]) => of.map((i) => [i, reason])));
    return { workers, absent };
  }

  async function showSamples(i) {
    samples = samples || (await loadSamples());
    const found = samples.workers.get(i) || [];
    plot.hidden = !found.length || !page.canDraw;
    visitsTable.closest("details").hidden = !found.length;
    if (!found.length) {
      const status = page.data.texts[page.data.status[i]];
      const reason = page.data.why.latency.get(i);
      words.textContent = `No raw samples: ${samples.absent.get(i) && !reason ? samples.absent.get(i) : reason || (status === "ok" ? "its file holds none" : status)}.`;
      return;
    }
    const middle =
      found.length > 1
        ? `two workers, medians ${found.map((w) => chart.ms(w.median)).join(" and ")}`
        : `median ${chart.ms(found[0].median)}`;
    words.textContent = `${found[0].rounds.length} rounds, ${middle}. A dot is the median of one visit, its bar reaches from the fastest to the slowest call.`;
    fillVisits(found);
    if (!page.canDraw) return;
    const arm = meta.arms[meta.rows.arm[i]],
      color = style.color(arm);
    const traces = found.map((worker) => ({
      type: "scatter",
      mode: "markers",
      name: worker.replica ? "replica" : "first worker",
      x: worker.rounds.map((n) => n + (found.length > 1 ? (worker.replica ? 0.16 : -0.16) : 0)),
      y: worker.medians,
      marker: {
        symbol: worker.replica ? "circle-open" : "circle",
        size: 6,
        color,
        line: { width: worker.replica ? 1.6 : 0, color },
      },
      text: worker.rounds.map(
        (n, k) =>
          `round ${n}: ${chart.ms(worker.medians[k])} (${chart.number(worker.lows[k])} to ${chart.number(worker.highs[k])})${worker.replica ? ", replica" : ""}`,
      ),
      hoverinfo: "text",
      error_y: {
        type: "data",
        symmetric: false,
        array: worker.highs.map((v, k) => v - worker.medians[k]),
        arrayminus: worker.lows.map((v, k) => worker.medians[k] - v),
        width: 0,
        thickness: 1,
        color,
      },
    }));
    const median = page.data.latency[i],
      low = page.data.latency_low[i],
      high = page.data.latency_high[i],
      muted = style.css("--muted");
    const shapes =
      median === null
        ? []
        : [
            {
              type: "line",
              xref: "paper",
              x0: 0,
              x1: 1,
              y0: median,
              y1: median,
              layer: "below",
              line: { color: muted, dash: "dot", width: 1 },
            },
          ];
    if (low !== null && high !== null)
      shapes.push({
        type: "rect",
        xref: "paper",
        x0: 0,
        x1: 1,
        y0: low,
        y1: high,
        layer: "below",
        line: { width: 0 },
        fillcolor: style.css("--even"),
      });
    const top = Math.max(...found.flatMap((w) => w.highs)),
      bottom = Math.min(...found.flatMap((w) => w.lows));
    const isLog = bottom > 0 && top / bottom > 4;
    const layout = chart.base({
      height: 250,
      shapes,
      showlegend: found.length > 1,
      legend: { orientation: "h", y: 1.12, x: 0 },
      margin: { l: 62, r: 12, t: found.length > 1 ? 24 : 8, b: 40 },
      hoverlabel: { bgcolor: style.css("--card"), font: { color: style.css("--ink") } },
      xaxis: { title: { text: "round", standoff: 4 }, rangemode: "tozero" },
      yaxis: {
        title: { text: "ms per call" },
        type: isLog ? "log" : "linear",
        ...(isLog ? chart.yAxis(chart.quantities.latency, true, [bottom, top], []) : {}),
      },
    });
    await Plotly.react(plot, traces, layout, chart.config);
  }

  function fillVisits(found) {
    const rows = found.flatMap((worker) =>
      worker.rounds.map((round, k) =>
        el(
          "tr",
          {},
          el("th", { scope: "row", text: round }),
          el("td", { text: worker.replica ? "replica" : "first" }),
          ...[worker.medians[k], worker.lows[k], worker.highs[k]].map((v) =>
            el("td", { class: "n", text: chart.number(v, 4) }),
          ),
        ),
      ),
    );
    visitsTable.replaceChildren(
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ...["round", "worker", "median ms", "fastest", "slowest"].map((text) => el("th", { scope: "col", text })),
        ),
      ),
      el("tbody", {}, ...rows),
    );
  }

  // ---- law

  async function showLaw(arm, panel, of) {
    const laws = page.data.laws[panel][arm],
      law = laws && laws.latency;
    const timed = of.filter((i) => page.data.latency[i] !== null);
    const say = (name, words) => el("p", {}, el("b", { text: `${name}: ` }), words || "nothing stands out.");
    lawWords.replaceChildren(
      ...(laws
        ? [
            say("Latency", laws.latency_words),
            ...(law ? [termTable("ms", law, (v) => chart.number(v))] : []),
            say("Memory", laws.memory_words),
            ...(laws.memory ? [termTable("peak memory", laws.memory, chart.bytes)] : []),
          ]
        : [say("Law", "this arm has no case in this chart.")]),
    );
    lawPlot.hidden = !law || !page.canDraw;
    if (!lawPlot.hidden) await drawLaw(arm, panel, timed, law);
  }

  async function drawLaw(arm, panel, timed, law) {
    const color = style.color(meta.arms[arm]),
      { x_min: from, x_max: to } = law,
      label = meta.panels[panel].x;
    const xs = [...Array(61).keys()].map((n) => from * (to / from) ** (n / 60));
    const at = (x) => law.fixed[1] + law.linear[1] * x + law.quadratic[1] * x * x;
    const traces = [
      { type: "scatter", mode: "lines", x: xs, y: xs.map(at), line: { color, width: 1.5 }, hoverinfo: "skip" },
      {
        ...chart.armTrace(page.data, "latency", arm, timed, true),
        mode: "markers",
        hoverinfo: "text",
        text: timed.map(
          (i) => `${label} = ${page.data.x[i]}: ${chart.ms(page.data.latency[i])}, law ${chart.ms(at(page.data.x[i]))}`,
        ),
      },
    ];
    await Plotly.react(
      lawPlot,
      traces,
      chart.base({
        height: 230,
        margin: { l: 62, r: 12, t: 8, b: 40 },
        xaxis: chart.xAxis(page.xs.get(panel), true, label),
        hoverlabel: { bgcolor: style.css("--card"), font: { color: style.css("--ink") } },
        yaxis: {
          type: "log",
          title: { text: "ms per call" },
          ...chart.yAxis(
            chart.quantities.latency,
            true,
            timed.map((i) => page.data.latency[i]),
            [],
          ),
        },
      }),
      chart.config,
    );
  }

  function termTable(caption, law, words) {
    const rows = [
      ["fixed", law.fixed, 1],
      ["per 1,000 tokens", law.linear, 1e3],
      ["per (1,000 tokens)\u00b2", law.quadratic, 1e6],
    ];
    const residuals = Object.entries(law.residuals).map(
      ([x, r]) =>
        `${x}: ${r === null ? "no law there" : `${r >= 0 ? "+" : "\u2212"}${chart.number(Math.abs(100 * r), 2)} %`}${Number(x) === law.left_out ? " (left out)" : ""}`,
    );
    return el(
      "div",
      {},
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          {},
          el(
            "thead",
            {},
            el("tr", {}, ...[caption, "estimate", "95 % interval"].map((text) => el("th", { scope: "col", text }))),
          ),
          el(
            "tbody",
            {},
            ...rows.map(([name, [low, mid, high], scale]) =>
              el(
                "tr",
                {},
                el("th", { scope: "row", text: name }),
                el("td", { class: "n", text: words(mid * scale) }),
                el("td", { text: `${words(low * scale)} to ${words(high * scale)}` }),
              ),
            ),
          ),
        ),
      ),
      el("p", { class: "muted", text: `Measured against the law: ${residuals.join(", ")}.` }),
    );
  }

  // ---- the arms of static tables open it too

  for (const block of document.querySelectorAll("[data-panel]")) {
    for (const row of block.querySelectorAll("tr[data-arm]")) {
      const head = row.querySelector("th"),
        arm = Number(row.dataset.arm),
        panel = Number(block.dataset.panel);
      head.replaceChildren(
        el("button", {
          type: "button",
          class: "arm",
          "aria-haspopup": "dialog",
          text: head.textContent,
          click: () => page.openDetail(arm, panel),
        }),
      );
    }
  }

  page.dataReady = showDetail;
  page.listen(() => {
    showDetail();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (dialog.open) showDetail();
  });
})();
