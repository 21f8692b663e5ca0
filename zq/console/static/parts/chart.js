// SPDX-License-Identifier: Apache-2.0
// Charts of points in time: lines that differ by their dashes, a sentence, and a table of the figures.

import { useEffect, useRef, useState } from "preact/hooks";
import { useChanges } from "../live.js";
import { settings } from "../session.js";
import { clock, count, moment, several } from "../text.js";
import { html } from "./html.js";

const HEIGHT = 170;
// Pixels at the right, so that the last label of the axis is not clipped.
const PADDED = 36;
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const MOST_ROWS = 20;
// Steps between two points that a line joins at most: a late sample is no gap.
const JOINED = 2.5;
// Gaps that the sentence of a chart names.
const NAMED = 2;
// Seconds of a step from which on times have a date.
const DATED = 600;

/**
 * @typedef {{name: string, values: (number | null)[]}} Line
 */

/**
 * @param {{title: string, since: string, step: number, lines: Line[], write?: (value: number | null) => string}} given
 *   `since`: the moment of the first point; `step`: seconds from one to the next
 */
export function Chart({ title, since, step, lines, write = count }) {
  const begin = Date.parse(since) / 1000;
  const times = lines[0].values.map((_, point) => begin + point * step);
  const gaps = gapsOf(lines, times, step);
  return html`<figure class="chart">
    <figcaption><strong>${title}</strong> <span class="quiet">${sentence(lines, write)}${unsampled(gaps, step)}</span></figcaption>
    <ul class="legend" aria-hidden="true">
      ${lines.map((line, number) => html`<${Key} key=${line.name} name=${line.name} number=${number} />`)}
      ${gaps.length > 0 && html`<li><span class="gapkey"></span> no data</li>`}
    </ul>
    <${Plot} times=${times} lines=${lines.map((line) => ({ ...line, values: joined(line.values) }))} gaps=${gaps} step=${step} write=${write} />
    <${Figures} title=${title} times=${times} lines=${lines} step=${step} write=${write} />
  </figure>`;
}

function sentence(lines, write) {
  const known = lines.map(({ name, values }) => ({ name, last: values.findLast((value) => value !== null), most: Math.max(...values) }));
  if (known.every(({ last }) => last === undefined)) return "No data yet. Recording starts now.";
  return `${known.map(({ name, last, most }) => `${name}: now ${write(last)}, maximum ${write(most)}`).join("; ")}.`;
}

/**
 * The spans without any sample between the first and the last point that are longer than a line joins.
 * @param {Line[]} lines
 * @param {number[]} times seconds
 * @param {number} step seconds
 * @returns {{from: number, to: number}[]} seconds
 */
export function gapsOf(lines, times, step) {
  const sampled = times.filter((_, point) => lines.some(({ values }) => values[point] !== null));
  const spans = sampled.slice(1).map((to, at) => ({ from: sampled[at], to }));
  return spans.filter(({ from, to }) => to - from > JOINED * step);
}

/** As plotted: a short gap is undefined, which uPlot joins; a long one stays null, which interrupts the line. */
function joined(values) {
  const result = [...values];
  let last = -1;
  values.forEach((value, point) => {
    if (value === null) return;
    if (last >= 0 && point - last <= JOINED) result.fill(undefined, last + 1, point);
    last = point;
  });
  return result;
}

/** A time in seconds, with its date if steps are long. */
function stamp(seconds, step) {
  return step < DATED ? clock(seconds * 1000) : moment(seconds * 1000).slice(5, 16);
}

function unsampled(gaps, step) {
  if (!gaps.length) return "";
  const named = gaps.slice(-NAMED).map(({ from, to }) => `from ${stamp(from, step)} to ${stamp(to, step)}`);
  return ` No data ${named.join(" and ")}${gaps.length > NAMED ? `, and in ${several(gaps.length - NAMED, "earlier period")}` : ""}.`;
}

function Key({ name, number }) {
  const dashes = DASHES[number].join(" ");
  return html`<li class=${`line-${number}`}>
    <svg width="34" height="10"><line x1="0" y1="5" x2="34" y2="5" stroke="currentColor" stroke-width="2" stroke-dasharray=${dashes} /></svg>
    ${name}
  </li>`;
}

function Plot({ times, lines, gaps, step, write }) {
  const host = useRef(null);
  const shaded = useRef(gaps);
  shaded.current = gaps;
  const plot = useRef(null);
  const dark = useDark();
  const data = [times, ...lines.map(({ values }) => values)];
  useEffect(() => {
    const element = host.current;
    plot.current = new window.uPlot(options(element, lines, shaded, step, write), data, element);
    const watcher = new ResizeObserver(() => plot.current.setSize({ width: element.clientWidth, height: HEIGHT }));
    watcher.observe(element);
    return () => {
      watcher.disconnect();
      plot.current.destroy();
    };
  }, [dark, settings.utc, lines.length, step]);
  useEffect(() => plot.current.setData(data));
  return html`<div class="plot" ref=${host} aria-hidden="true"></div>`;
}

/** Whether dark colours are shown; drawn again when that changes. */
function useDark() {
  useChanges();
  const query = matchMedia("(prefers-color-scheme: dark)");
  const [, draw] = useState(0);
  useEffect(() => {
    const changed = () => draw((times) => times + 1);
    query.addEventListener("change", changed);
    return () => query.removeEventListener("change", changed);
  }, []);
  return settings.theme ? settings.theme === "dark" : query.matches;
}

/** Shade the gaps behind the lines. */
function shade(plot, gaps, colour) {
  plot.ctx.fillStyle = colour;
  for (const { from, to } of gaps) {
    const [left, right] = [from, to].map((time) => plot.valToPos(time, "x", true));
    plot.ctx.fillRect(left, plot.bbox.top, right - left, plot.bbox.height);
  }
}

function options(element, lines, gaps, step, write) {
  const colours = getComputedStyle(element);
  const grid = { stroke: colours.borderTopColor, width: 1 };
  const axis = { stroke: colours.color, grid, ticks: grid, font: "12px system-ui, sans-serif" };
  const keys = [...element.parentElement.querySelectorAll(".legend li")].map((key) => getComputedStyle(key).color);
  const series = lines.map(({ name }, number) => ({ label: name, stroke: keys[number], width: 2, dash: DASHES[number], spanGaps: false, points: { show: false } }));
  return {
    width: element.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, PADDED, 0, 0],
    hooks: { drawClear: [(plot) => shade(plot, gaps.current, colours.outlineColor)] },
    scales: { y: { range: (_plot, _least, most) => [0, Math.max(1, most ?? 0) * 1.05] } },
    axes: [
      { ...axis, values: (_plot, ticks) => ticks.map((tick) => stamp(tick, step)), space: step < DATED ? 80 : 110 },
      { ...axis, values: (_plot, ticks) => ticks.map((tick) => write(tick)), size: 64 },
    ],
    series: [{}, ...series],
  };
}

/** The last that is known of so many points. */
function latest(values, point, each) {
  return values.slice(Math.max(0, point - each + 1), point + 1).findLast((value) => value !== null);
}

function Figures({ title, times, lines, step, write }) {
  const [open, setOpen] = useState(false);
  const each = Math.ceil(times.length / MOST_ROWS);
  const shown = times.map((_, point) => point).filter((point) => (times.length - 1 - point) % each === 0);
  const row = (point) => html`<tr key=${times[point]}>
    <th scope="row">${stamp(times[point], step)}</th>
    ${lines.map(({ name, values }) => html`<td key=${name} class="number">${write(latest(values, point, each))}</td>`)}
  </tr>`;
  return html`<details onToggle=${(event) => setOpen(event.target.open)}>
    <summary>Show as table</summary>
    ${open &&
    html`<div class="scroll" role="region" aria-label=${`${title}, as a table`} tabindex="0">
      <table class="plain">
        <thead><tr><th scope="col">Time</th>${lines.map(({ name }) => html`<th key=${name} scope="col" class="number">${name}</th>`)}</tr></thead>
        <tbody>${shown.toReversed().map(row)}</tbody>
      </table>
    </div>`}
  </details>`;
}

/** A line of the last minutes within a row; what it says stands in the row too. */
export function Spark({ values }) {
  if (!values || values.every((value) => value === null)) return html`<span class="quiet">–</span>`;
  const most = Math.max(1, ...values);
  const points = values.map((value, at) => (value === null ? null : `${(at * 72) / (values.length - 1) + 1},${(19 - (18 * value) / most).toFixed(1)}`));
  return html`<svg class="spark" width="74" height="20" aria-hidden="true">
    <polyline points=${points.filter(Boolean).join(" ")} fill="none" stroke="currentColor" stroke-width="1.5" />
    <circle cx="73" cy=${points.at(-1)?.split(",")[1] ?? 19} r="1.5" fill="currentColor" />
  </svg>`;
}
