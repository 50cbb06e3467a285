// Charts from their specifications, in the colours of the theme. Expressions are interpreted, never made into code.
const figures = [...document.querySelectorAll("figure[data-spec]")];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function config() {
  const text = colour("--muted");
  const line = colour("--line");
  return {
    background: "transparent",
    font: getComputedStyle(document.body).fontFamily,
    view: { stroke: null },
    axis: {
      labelColor: text, titleColor: text, gridColor: line, domainColor: colour("--strong"), tickColor: line,
      titleFontWeight: "normal", labelFontSize: 11, titleFontSize: 11,
    },
    axisX: { grid: false },
    legend: { labelColor: text, titleColor: text, labelFontSize: 11, columns: innerWidth < 700 ? 2 : 0 },
    line: { color: colour("--c1"), strokeWidth: 1.5 },
    bar: { color: colour("--c1") },
    point: { color: colour("--c1") },
    range: { category: ["--c1", "--c2", "--c3", "--c4", "--c5", "--c6"].map(colour) },
  };
}

async function drawn(figure) {
  const place = figure.querySelector(".draw");
  place.hidden = false;
  try {
    await window.vegaEmbed(place, JSON.parse(figure.dataset.spec), {
      ast: true, actions: false, renderer: "svg", defaultStyle: false, tooltip: false, config: config(),
    });
    figure.classList.add("drawn");
    figure.querySelector("details")?.removeAttribute("open");
  } catch (error) {
    place.hidden = true;  // the table below says the same
    console.error(error);
  }
}

function all() {
  for (const figure of figures) drawn(figure);
}
all();
document.addEventListener("themed", all);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
