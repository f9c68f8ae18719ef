// Draws the panels in the colours of the present scheme, and keeps their axes of time together.
(() => {
  "use strict";
  const source = document.getElementById("drawings").textContent;
  const panels = JSON.parse(source);
  const nodes = panels.map((panel) => document.getElementById(panel.id));
  const coarse = window.matchMedia("(pointer: coarse)").matches;

  // Colours are named in the drawings as in the style sheet.
  const read = () => {
    const style = getComputedStyle(document.documentElement);
    const named = (key, value) =>
      typeof value === "string" && value.startsWith("--")
        ? style.getPropertyValue(value).trim() || value
        : value;
    return { drawings: JSON.parse(source, named), colour: (name) => named("", name) };
  };

  const axis = (own, colour, narrow) => ({
    zeroline: false,
    showline: false,
    ticks: "",
    gridcolor: colour("--grid"),
    tickfont: { size: narrow ? 11 : 12, color: colour("--muted") },
    automargin: false,
    ...own,
  });

  const family = getComputedStyle(document.body).fontFamily;
  const layout = (own, colour, range) => {
    const narrow = window.innerWidth < 760;
    return {
      ...own,
      autosize: true,
      margin: { l: narrow ? 76 : 92, r: narrow ? 8 : 12, t: 6, b: 22, pad: 4 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family, color: colour("--ink") },
      showlegend: false,
      barmode: "overlay",
      dragmode: coarse ? false : "zoom",
      hovermode: own.bars ? "closest" : "x unified",
      hoverdistance: 12,
      hoverlabel: {
        bgcolor: colour("--card"),
        bordercolor: colour("--line"),
        font: { family, color: colour("--ink"), size: 12.5 },
        align: "left",
        namelength: -1,
      },
      xaxis: axis({ ...own.xaxis, range, nticks: narrow ? 5 : 12, hoverformat: ".1f" }, colour, narrow),
      yaxis: axis({ nticks: 5, ...own.yaxis, fixedrange: true }, colour, narrow),
    };
  };

  let range = panels.length ? panels[0].layout.xaxis.range : [0, 1];
  const whole = range;
  const draw = () => {
    const { drawings, colour } = read();
    drawings.forEach((panel, at) => {
      const bars = panel.data.every((trace) => trace.type === "bar");
      Plotly.react(nodes[at], panel.data, layout({ ...panel.layout, bars }, colour, [...range]), {
        displayModeBar: false,
        responsive: true,
        doubleClick: false,
        showTips: false,
      });
    });
  };
  const zoom = (to) => {
    range = [Math.max(whole[0], to[0]), Math.min(whole[1], to[1])];
    draw();
  };

  draw();
  nodes.forEach((node) => {
    node.on("plotly_relayout", (change) => {
      const from = change["xaxis.range[0]"];
      if (from !== undefined) zoom([from, change["xaxis.range[1]"]]);
    });
    node.on("plotly_doubleclick", () => zoom(whole));
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  // One line of time through all panels, under the pointer.
  const cursor = document.getElementById("cursor");
  const field = document.getElementById("panels");
  field.addEventListener("mousemove", (event) => {
    const first = nodes[0] && nodes[0]._fullLayout && nodes[0]._fullLayout.xaxis;
    if (!first) return;
    const left = nodes[0].getBoundingClientRect().left;
    const at = event.clientX - left - first._offset;
    cursor.hidden = at < 0 || at > first._length;
    cursor.style.left = `${event.clientX - field.getBoundingClientRect().left}px`;
    cursor.firstElementChild.textContent = `${first.p2d(at).toFixed(1)} s`;
  });
  field.addEventListener("mouseleave", () => (cursor.hidden = true));

  const copy = document.getElementById("copy");
  copy.hidden = !navigator.clipboard;
  copy.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById("command").textContent);
    copy.textContent = "Copied";
  });
})();
