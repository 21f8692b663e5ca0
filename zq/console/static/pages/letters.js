// SPDX-License-Identifier: Apache-2.0
// Dead letters: the queues from which they come, and the redrive of selected ones.

import { call, get, queuePath } from "../api.js";
import { useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { to } from "../route.js";
import { may } from "../session.js";
import { count, several, visible } from "../text.js";

const EVERY = 30;
// Names that the page shows, and requests for them at most: a page of a filtered listing may be short.
const SHOWN = 20;
const MAX_REQUESTS = 5;
// Ids of one request for a redrive.
const STEP = 1000;

/**
 * Poll the queues that name this one as their dead-letter queue. The value is undefined as long as they are unknown.
 * @param {string} queue
 * @returns {ReturnType<typeof useLive>}
 */
export function useSources(queue) {
  return useLive(async () => (may("queues:get_all") ? sourcesOf(queue) : []), EVERY, [queue]);
}

async function sourcesOf(queue) {
  const names = [];
  let marker = "";
  for (let request = 0; request < MAX_REQUESTS && names.length < SHOWN; request += 1) {
    const { queues, links } = await get("queues", { _dead_letter_queue: queue, limit: SHOWN, marker });
    names.push(...queues.map(({ name }) => name));
    const next = links[0] && new URL(links[0].href, location.href).searchParams;
    if (!next?.has("_dead_letter_queue")) break;
    marker = next.get("marker");
  }
  return names;
}

/** Below the name of a dead-letter queue: whose letters it has. */
export function Sources({ project, sources = [] }) {
  if (!sources.length) return null;
  const shown = sources.slice(0, SHOWN);
  const links = shown.map((name, at) => html`${at > 0 && ", "}<a key=${name} href=${to(project, name)}>${visible(name)}</a>`);
  return html`<p class="words">Dead-letter queue of ${links}${sources.length > SHOWN && " and others"}.</p>`;
}

/** The button for dead letters of `queue` that were selected, or that are shown. `done`: called when they have moved. */
export function RedriveThese({ queue, ids, done }) {
  const act = async () => {
    const { moved, lost } = await redriven(queue, ids);
    announce(`Moved ${several(moved, "message")}.${lost ? ` Skipped ${several(lost, "message")} no longer ready in ${visible(queue)}.` : ""}`, moved === 0);
    done();
  };
  const body = html`<p>The server moves ${several(ids.length, "message")} from ${visible(queue)} back to the original ${ids.length === 1 ? "queue" : "queues"}.</p>`;
  const question = { title: `Redrive ${several(ids.length, "message")}`, verb: "Redrive", harmless: true, body, act };
  return html`<${Act} rule="messages:delete_all" kind="main" onClick=${() => ask(question)}>Redrive${ids.length > 1 && ` ${count(ids.length)}`}…</${Act}>`;
}

async function redriven(queue, ids) {
  const sum = { moved: 0, lost: 0 };
  for (let at = 0; at < ids.length; at += STEP) {
    const body = JSON.stringify({ ids: ids.slice(at, at + STEP) });
    const { moved, lost } = JSON.parse((await call("POST", queuePath(queue, "/redrive"), { body })).text);
    Object.assign(sum, { moved: sum.moved + moved, lost: sum.lost + lost.length });
  }
  return sum;
}
