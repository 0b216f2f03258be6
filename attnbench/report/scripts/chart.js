// Turns figures into what Plotly draws: quantities, numbers in words, axes, traces.
page.chart = (() => {
  const { meta, style } = page;
  const BYTES = ["B", "KiB", "MiB", "GiB", "TiB"];

  /** Three significant digits, as the tables write them. */
  function number(value, digits = 3) {
    if (value === null || value === undefined) return "";
    const size = Math.abs(value);
    if (size !== 0 && (size >= 1e7 || size < 1e-4)) return value.toExponential(digits - 1);
    const decimals = size === 0 ? 0 : Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
    return value.toLocaleString("en", {
      minimumFractionDigits: Math.min(decimals, 20),
      maximumFractionDigits: Math.min(decimals, 20),
    });
  }
  function bytes(value) {
    let unit = 0,
      size = value;
    while (Math.abs(size) >= 1023.5 && unit < BYTES.length - 1) {
      size /= 1024;
      unit += 1;
    }
    return `${unit === 0 || Number.isInteger(size) ? size.toLocaleString("en") : number(size)} ${BYTES[unit]}`;
  }
  const ms = (value) => `${number(value)} ms`;
  const ratio = (value) => `${value.toFixed(2)}x`;
  const plain = (value) => number(value);
  const short = (value) => String(Number(value.toPrecision(6)));

  // key: column of the data, or a function of (data, case)
  const quantities = {
    latency: {
      label: "Latency",
      axis: "ms per call",
      words: ms,
      low: "latency_low",
      high: "latency_high",
      scale: "log",
    },
    speed: {
      label: "Speed-up against the baseline",
      axis: "times as fast as the baseline",
      words: ratio,
      low: "speed_low",
      high: "speed_high",
      scale: "log",
      line: [1, "baseline"],
      skipsBaseline: true,
    },
    memory: {
      label: "Peak memory",
      axis: "peak above the state before the call",
      words: bytes,
      ticks: bytes,
      scale: "log",
    },
    matrices: {
      label: "Peak memory in score matrices",
      axis: "score matrices",
      from: "memory",
      words: plain,
      scale: "log",
      line: [1, "one score matrix"],
    },
    error: {
      label: "Worst row's error",
      axis: "relative error, worst row",
      words: (v) => v.toExponential(1),
      ticks: (v) => Number(v.toPrecision(6)).toExponential(),
      scale: "log",
      wrong: true,
    },
    fraction: {
      label: "Fraction of the machine's peak",
      axis: "fraction of the measured peak",
      words: plain,
      scale: "linear",
      line: [1, "machine peak"],
    },
  };

  /** The figure of a case, or null where there is none that may be drawn. */
  function value(data, key, i) {
    const found = data[quantities[key].from || key][i];
    if (found === null || found <= 0) return null;
    if (key !== "matrices" || found === null) return found;
    return data.matrix[i] ? found / data.matrix[i] : null;
  }

  /** Plotly reads some HTML in names and texts: what comes from a run must stay text. */
  const literal = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  /** Three to eight multiples of 1, 2 or 5 times a power of ten, for a range so narrow that few of these lie in it. */
  function roundSteps(low, high) {
    const power = 10 ** Math.floor(Math.log10((high - low) / 3)),
      step = [5, 2, 1].find((s) => s * power <= (high - low) / 3) * power,
      first = Math.ceil(low / step - 1e-9),
      count = Math.floor(high / step + 1e-9) - first + 1;
    return [...Array(count).keys()].map((i) => Number(((first + i) * step).toPrecision(12)));
  }
  function logTicks(low, high, words) {
    const few = high / low < 300,
      values = [];
    for (let power = Math.floor(Math.log10(low)) - 1; power <= Math.ceil(Math.log10(high)); power++) {
      for (const step of few ? [1, 2, 5] : [1]) values.push(step * 10 ** power);
    }
    let kept = values.filter((v) => v >= low * 0.999 && v <= high * 1.001);
    if (kept.length < 2) kept = roundSteps(low, high);
    while (kept.length > 9) kept = kept.filter((_, i) => i % 2 === 0);
    return { tickvals: kept, ticktext: kept.map((v) => words(v)) };
  }
  function byteTicks(low, high, isLog) {
    let kept = [];
    if (isLog) {
      for (let power = Math.ceil(Math.log2(low)); power <= Math.floor(Math.log2(high)); power++) kept.push(2 ** power);
      while (kept.length > 8)
        kept =
          kept.filter((v) => Math.log2(v) % 2 === 0).length > 3
            ? kept.filter((v) => Math.log2(v) % 2 === 0 && (kept.length <= 16 || Math.log2(v) % 4 === 0))
            : kept.slice(0, 8);
    }
    if (kept.length < 2) {
      const step = 2 ** Math.floor(Math.log2((high - low) / 3));
      for (let v = Math.ceil(low / step) * step; v <= high; v += step) kept.push(v);
    }
    return { tickvals: kept, ticktext: kept.map(bytes) };
  }

  /** Range and ticks of the y axis around the values; intervals count, cut where they reach far beyond the points. */
  function yAxis(quantity, isLog, values, ends) {
    if (!values.length) return { range: isLog ? [-1, 1] : [0, 1], showticklabels: false };
    const least = Math.min(...values),
      most = Math.max(...values);
    const all = [
      ...values,
      ...ends.map((end) => Math.min(Math.max(end, least / 3), most * 3)),
      ...(quantity.line ? [quantity.line[0]] : []),
    ];
    const low = isLog ? Math.min(...all) / 1.25 : 0,
      high = isLog ? Math.max(...all) * 1.25 : Math.max(...all) * 1.06;
    return { range: isLog ? [Math.log10(low), Math.log10(high)] : [low, high], ...yTicks(quantity, isLog, low, high) };
  }
  function yTicks(quantity, isLog, low, high) {
    if (quantity.ticks === bytes) return byteTicks(low, high, isLog);
    return isLog
      ? logTicks(low, high, quantity.ticks || short)
      : { tickvals: null, ticktext: null, exponentformat: "power" };
  }
  function xAxis(xs, isLog, label) {
    const step = Math.max(1, Math.ceil(xs.length / 9));
    const kept = isLog ? xs.filter((_, i) => (xs.length - 1 - i) % step === 0) : null;
    const least = xs[0],
      most = xs[xs.length - 1],
      pad = (most - least) * 0.04 || most * 0.1;
    return {
      type: isLog ? "log" : "linear",
      title: { text: ["T", "kv_len"].includes(label) ? `${label} (tokens)` : literal(label), standoff: 6 },
      tickvals: kept,
      ticktext: kept && kept.map((x) => (x >= 1024 && x % 1024 === 0 ? `${x / 1024}k` : String(x))),
      range: isLog ? [Math.log10(least / 1.12), Math.log10(most * 1.12)] : [Math.min(0, least), most + pad],
      separatethousands: true,
    };
  }

  /** What every chart shares: colours of the page, no fixed size, no decoration. */
  function base(extra = {}) {
    const ink = style.css("--ink"),
      grid = style.css("--grid"),
      muted = style.css("--muted");
    const axis = {
      color: muted,
      gridcolor: grid,
      linecolor: muted,
      zeroline: false,
      showline: true,
      ticks: "outside",
      ticklen: 4,
      tickcolor: muted,
      tickfont: { color: ink },
      fixedrange: matchMedia("(pointer: coarse)").matches,
    };
    const { xaxis = {}, yaxis = {}, ...rest } = extra;
    return {
      font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: ink },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 62, r: 14, t: 8, b: 44 },
      showlegend: false,
      hovermode: "closest",
      hoverdistance: 24,
      dragmode: "zoom",
      autosize: true,
      xaxis: { ...axis, title: { font: { color: ink } }, ...xaxis },
      yaxis: { ...axis, ...yaxis },
      ...rest,
    };
  }
  const config = {
    displayModeBar: false,
    displaylogo: false,
    responsive: true,
    plotlyServerURL: "",
    topojsonURL: "",
    showTips: false,
    doubleClickDelay: 400,
  };

  /** Line with markers of one arm: a gap where a case has no figure, so that no line is drawn over it. */
  function armTrace(data, key, a, cases, bars) {
    const quantity = quantities[key],
      arm = meta.arms[a];
    const ys = cases.map((i) => (data.texts[data.status[i]] === "ok" ? value(data, key, i) : null));
    const gap = (column, sign) =>
      cases.map((i, n) => {
        const end = column && data[column][i];
        return ys[n] === null || end === null || end === undefined
          ? 0
          : Math.max(0, sign * (Math.max(end, ys[n] / 1e3) - ys[n]));
      });
    const color = style.color(arm);
    return {
      type: "scatter",
      mode: "lines+markers",
      name: literal(arm.name),
      x: cases.map((i) => data.x[i]),
      y: ys,
      customdata: cases,
      hoverinfo: "none",
      meta: a,
      cliponaxis: false,
      line: { color, dash: style.dash(arm), width: 2 },
      marker: { color, symbol: style.symbol(arm), size: 7, line: { width: 0 } },
      error_y: {
        type: "data",
        symmetric: false,
        visible: bars && Boolean(quantity.low),
        array: gap(quantity.high, 1),
        arrayminus: gap(quantity.low, -1),
        thickness: 1.2,
        width: 3,
        color,
      },
    };
  }

  return { quantities, value, number, bytes, ms, ratio, literal, base, config, xAxis, yAxis, yTicks, armTrace };
})();
