// How an arm looks: the same hue, dash and marker as in the static pictures.
page.style = (() => {
  const SYMBOLS = {
    o: "circle",
    s: "square",
    "^": "triangle-up",
    D: "diamond",
    v: "triangle-down",
    P: "cross",
    X: "hexagram",
    "*": "star",
  };
  const PATHS = {
    o: "M18 2a4 4 0 1 0 .01 0z",
    s: "M14.5 2.5h7v7h-7z",
    "^": "M18 1.5l4.5 8h-9z",
    D: "M18 1l5 5-5 5-5-5z",
    v: "M18 10.5l4.5-8h-9z",
    P: "M16.5 1.5h3v3h3v3h-3v3h-3v-3h-3v-3h3z",
    X: "M18 .5l1.6 2.9 3.4-.1-1.8 2.7L23 8.700l-3.4-.1L18 11.500l-1.600-2.900-3.400.1L14.800 6 13 3.300l3.400.1z",
    "*": "M18 .5l1.500 3.700 4 .3-3 2.600.9 3.900-3.400-2.100-3.400 2.100.9-3.900-3-2.600 4-.3z",
  };
  const SVG = "http://www.w3.org/2000/svg";
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  page.swatch = (arm) => {
    const svg = document.createElementNS(SVG, "svg");
    for (const [name, value] of Object.entries({ class: "swatch", viewBox: "0 0 36 12", "aria-hidden": "true" }))
      svg.setAttribute(name, value);
    const line = document.createElementNS(SVG, "path"),
      marker = document.createElementNS(SVG, "path");
    line.setAttribute("d", "M0 6H36");
    line.style.cssText = `stroke:var(--hue-${arm.hue});stroke-width:2;stroke-dasharray:${arm.dash.map((d) => 2 * d).join(" ") || "none"}`;
    marker.setAttribute("d", PATHS[arm.marker] || PATHS.o);
    marker.style.cssText = `fill:var(--hue-${arm.hue})`;
    svg.append(line, marker);
    return svg;
  };
  return {
    css,
    color: (arm) => css(`--hue-${arm.hue}`),
    dash: (arm) => arm.dash.map((d) => `${2 * d}px`).join(",") || "solid",
    symbol: (arm) => SYMBOLS[arm.marker] || "circle",
  };
})();
