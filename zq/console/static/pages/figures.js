// SPDX-License-Identifier: Apache-2.0
// The figures of one queue: four tiles, and charts of its past.

import { get, queuePath } from "../api.js";
import { useClock, useLive } from "../live.js";
import { Chart } from "../parts/chart.js";
import { html } from "../parts/html.js";
import { go, to } from "../route.js";
import { age, clock, count, counted, rate, visible } from "../text.js";

const EVERY = 2;
const WINDOWS = { 300: "5 min", 600: "10 min", 10800: "3 h" };

/**
 * The figures of a queue, asked for every two seconds: its points, and `free`, `claimed` and `total` of now.
 * @param {import("../route.js").Route} route
 */
export function useFigures(route) {
  const { queue, query } = route;
  const window = query.window in WINDOWS ? query.window : "600";
  const load = async () => {
    const points = await get(queuePath(queue, "/figures"), { window });
    const { ready, delayed, claimed } = points.now;
    return { ...points, window, free: ready + delayed, claimed, total: ready + delayed + claimed };
  };
  return useLive(load, EVERY, [queue, window]);
}

/** `dead`: the queue for its dead letters, if it has one, and its `letters`. */
export function Figures({ route, found, dead, letters }) {
  return html`<${Tiles} found=${found} project=${route.project} dead=${dead} letters=${letters} /><${Charts} route=${route} points=${found.value} />`;
}

function Tiles({ found, project, dead, letters }) {
  const now = useClock();
  const depth = found.value.now;
  const late = found.fault !== null || now - found.at > 10000;
  return html`<section aria-label="Figures" class=${late ? "tiles stale" : "tiles"}>
    <div class="tile first"><span class="name">Ready</span><span class="figure">${counted(depth, "ready")}</span><span class="quiet">oldest ${age(depth.oldest_ready)}</span></div>
    <div class="tile"><span class="name">Delayed</span><span class="figure">${counted(depth, "delayed")}</span></div>
    <div class="tile"><span class="name">Claimed</span><span class="figure">${counted(depth, "claimed")}</span></div>
    <div class="tile"><span class="name">Dead letters</span><span class="figure">${dead ? count(letters?.ready) : "–"}</span>
      <span class="quiet">${dead ? html`in <a href=${to(project, dead)}>${visible(dead)}</a>` : "go nowhere"}</span></div>
    ${late && html`<p class="quiet asof">As of ${clock(found.at)}, ${age((now - found.at) / 1000)} ago.</p>`}
  </section>`;
}

function Charts({ route, points }) {
  const { depth, rates, since, step } = points;
  const depths = ["ready", "delayed", "claimed"].map((name) => ({ name, values: depth[name] }));
  const flows = ["posted", "claimed", "finished", "lapsed"].map((name) => ({ name, values: rates[name] }));
  const choose = (event) => go(to(route.project, route.queue, { ...route.query, window: event.target.value }), true);
  return html`<details class="past" open=${route.query.charts !== "no"}>
    <summary>The past</summary>
    <label class="row quiet">
      <span>Of the last</span>
      <select class="short" value=${points.window} onChange=${choose}>${Object.entries(WINDOWS).map(([seconds, name]) => html`<option key=${seconds} value=${seconds}>${name}</option>`)}</select>
      <span>${points.servers > 1 ? `by ${points.servers} servers` : ""}</span>
    </label>
    <div class="charts">
      <${Chart} title="Messages" since=${since} step=${step} lines=${depths} />
      <${Chart} title="Messages a second" since=${since} step=${step} lines=${flows} write=${rate} />
    </div>
  </details>`;
}
