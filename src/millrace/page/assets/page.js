// Keeps the page as it is now: asks for it again when the workspace changed, and draws charts.
"use strict";
(function () {
  const live = () => document.getElementById("live");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  let openDetails = new Set();
  let charts = [];
  const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 2592000];

  function draw() {
    charts.forEach((chart) => chart.destroy());
    charts = [];
    document.querySelectorAll(".chart[data-chart]").forEach((place) => {
      const given = JSON.parse(place.dataset.chart);
      const colours = [css("--accent"), css("--warn"), css("--ok"), css("--bad"), css("--soft")];
      const axis = { stroke: css("--faint"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
      const options = {
        width: Math.max(200, place.clientWidth - 16), height: 162, cursor: { y: false },
        legend: { show: given.names.length > 1 },
        scales: { x: { time: given.time } },
        axes: [given.time ? { ...axis, incrs: SECONDS, space: 96, values: (_, ticks) => ticks.map((at) => clock(at, ticks)) } : { ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 1e5, 1e6] }, { ...axis, size: 56, values: (_, ticks) => ticks.map(short) }],
        series: [{}].concat(given.names.map((name, n) => ({
          label: name, stroke: colours[n % colours.length], width: 1.5, points: { show: given.data[0].length < 3 },
          fill: given.names.length === 1 ? css("--accent-soft") : undefined,
        }))),
      };
      place.textContent = "";
      charts.push(new uPlot(options, given.data, place));
    });
  }

  // Times are UTC, as everywhere on these pages.
  function clock(at, ticks) {
    const text = new Date(at * 1000).toISOString();
    return ticks[ticks.length - 1] - ticks[0] < 86400 ? text.slice(11, 19) : text.slice(5, 16).replace("T", " ");
  }

  function short(value) {
    const size = Math.abs(value);
    if (size >= 1e9) return (value / 1e9).toPrecision(3) + "G";
    if (size >= 1e6) return (value / 1e6).toPrecision(3) + "M";
    if (size >= 1e4) return (value / 1e3).toPrecision(3) + "k";
    return String(Math.round(value * 100) / 100);
  }

  function isBusy() {
    const at = document.activeElement;
    return at && at.closest("form") && live() && live().contains(at);
  }

  document.addEventListener("htmx:beforeSwap", () => {
    openDetails = new Set([...document.querySelectorAll("details[open][id]")].map((d) => d.id));
  });
  document.addEventListener("htmx:afterSettle", () => {
    openDetails.forEach((id) => { const found = document.getElementById(id); if (found) found.open = true; });
    draw();
  });
  document.addEventListener("DOMContentLoaded", () => {
    draw();
    const place = document.body.dataset.events;
    if (!place || !window.EventSource) return;
    const events = new EventSource(place);
    let missed = false;
    const refresh = () => {
      if (document.hidden || isBusy()) { missed = true; return; }
      missed = false;
      if (live()) htmx.trigger(live(), "changed");
    };
    events.onmessage = refresh;
    document.addEventListener("visibilitychange", () => { if (missed) refresh(); });
    window.addEventListener("pagehide", () => events.close());
  });
  let wait = 0;
  window.addEventListener("resize", () => { clearTimeout(wait); wait = setTimeout(draw, 150); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
