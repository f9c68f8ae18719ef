// Draws the panels in the colours of the present scheme; each has axes of its own.
(() => {
  "use strict";
  const source = document.getElementById("drawings").textContent;

  // Colours are named in the drawings as in the style sheet.
  const style = () => getComputedStyle(document.documentElement);
  const colour = (name) => style().getPropertyValue(name).trim() || name;
  const named = (key, value) =>
    typeof value === "string" && value.startsWith("--") ? colour(value) : value;

  const axis = (own) => ({
    zeroline: false,
    ticks: "",
    gridcolor: colour("--grid"),
    tickfont: { size: 12, color: colour("--muted") },
    automargin: true,
    ...own,
    title: { font: { size: 12, color: colour("--muted") }, standoff: 6, ...own.title },
  });
  const family = getComputedStyle(document.body).fontFamily;
  const layout = (own) => ({
    ...own,
    autosize: true,
    margin: { l: 54, r: 10, t: 8, b: 40 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { family, color: colour("--ink") },
    showlegend: false,
    hovermode: "closest",
    hoverlabel: {
      bgcolor: colour("--card"),
      bordercolor: colour("--line"),
      font: { family, color: colour("--ink"), size: 12.5 },
    },
    xaxis: axis(own.xaxis || {}),
    yaxis: axis(own.yaxis || {}),
  });
  const draw = () => {
    for (const panel of JSON.parse(source, named)) {
      Plotly.react(document.getElementById(panel.id), panel.data, layout(panel.layout), {
        displayModeBar: false,
        responsive: true,
      });
    }
  };
  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
