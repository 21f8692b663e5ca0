// SPDX-License-Identifier: Apache-2.0
// The figures of one queue: a row of counts, and charts of its past.

import { get, queuePath } from "../api.js";
import { useChanges, useClock, useLive } from "../live.js";
import { Chart } from "../parts/chart.js";
import { html } from "../parts/html.js";
import { go, to } from "../route.js";
import { choose, settings } from "../session.js";
import { age, clock, count, counted, rate, visible } from "../text.js";

const EVERY = 2;
const WINDOWS = { 300: "5 min", 600: "10 min", 10800: "3 h", 86400: "24 h", 604800: "7 d" };

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

/** `dead`: the dead-letter queue, if there is one, and its `letters`; `sources`: the queues whose dead letters it has. */
export function Figures({ route, found, dead, letters, sources }) {
  return html`<${Tiles} found=${found} project=${route.project} dead=${dead} letters=${letters} sources=${sources} />
    <${Charts} route=${route} points=${found.value} />`;
}

function tile(name, figure, more, first) {
  return html`<div class=${first ? "tile first" : "tile"}><span class="name">${name}</span> <span class="figure">${figure}</span>${more && html` <span class="quiet">${more}</span>`}</div>`;
}

function Tiles({ found, project, dead, letters, sources }) {
  const now = useClock();
  const depth = found.value.now;
  const late = found.fault !== null || now - found.at > 10000;
  const inQueue = dead && html`in <a href=${to(project, dead)}>${visible(dead)}</a>`;
  return html`<section aria-label="Figures" class=${late ? "tiles strip stale" : "tiles strip"}>
    ${tile("Ready", counted(depth, "ready"), `oldest ${age(depth.oldest_ready)}`, true)}
    ${tile("Delayed", counted(depth, "delayed"))} ${tile("Claimed", counted(depth, "claimed"))}
    ${dead && tile("Dead letters", count(letters?.ready), inQueue)}
    ${!dead && !sources?.length && tile("Dead letters", "–", "no dead-letter queue")}
    ${late && html`<p class="quiet asof">As of ${clock(found.at)}, ${age((now - found.at) / 1000)} ago.</p>`}
  </section>`;
}

function toggled({ target: { open } }) {
  if (open !== settings.charts) choose({ charts: open });
}

/** Folded until the reader opens them; this browser remembers that. */
function Charts({ route, points }) {
  useChanges();
  return html`<details class="past" open=${settings.charts} onToggle=${toggled}>
    <summary>Charts</summary>
    ${settings.charts && html`<${Opened} route=${route} points=${points} />`}
  </details>`;
}

function Opened({ route, points }) {
  const { depth, rates, since, step } = points;
  const depths = ["ready", "delayed", "claimed"].map((name) => ({ name, values: depth[name] }));
  const flows = ["posted", "claimed", "finished", "lapsed"].map((name) => ({ name, values: rates[name] }));
  const select = (event) => go(to(route.project, route.queue, { ...route.query, window: event.target.value }), true);
  return html`<label class="row quiet">
      <span>Period</span>
      <select class="short" value=${points.window} onChange=${select}>${Object.entries(WINDOWS).map(([seconds, name]) => html`<option key=${seconds} value=${seconds}>${name}</option>`)}</select>
      <span>${points.servers > 1 ? `reported by ${points.servers} servers` : ""}</span>
    </label>
    <div class="charts">
      <${Chart} title="Messages" since=${since} step=${step} lines=${depths} />
      <${Chart} title="Messages per second" since=${since} step=${step} lines=${flows} write=${rate} />
    </div>`;
}
