// SPDX-License-Identifier: Apache-2.0
// The page of one queue: its figures, its metadata in words, and the parts below.

import { useState } from "preact/hooks";
import { call, get, queuePath } from "../api.js";
import { useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { at, go, to } from "../route.js";
import { may } from "../session.js";
import { age, count, counted, several, visible } from "../text.js";
import { ByHand } from "./claim.js";
import { Figures, useFigures } from "./figures.js";
import { History } from "./history.js";
import { Sources, useSources } from "./letters.js";
import { Message } from "./message.js";
import { Messages, STATES } from "./messages.js";
import { Metadata } from "./metadata.js";
import { PauseButton, Paused } from "./pausing.js";
import { Post } from "./post.js";
import { askToDelete, askToPurge } from "./queueacts.js";
import { Redrive } from "./redrive.js";

const METADATA_EVERY = 20;
const LETTERS_EVERY = 10;
const EXISTS_EVERY = 30;

/** The page. */
export function Queue({ route }) {
  const { queue, project } = route;
  const figures = useFigures(route);
  const depth = figures.value?.now;
  const exists = useLive(() => isThere(queue), EXISTS_EVERY, [queue]);
  const metadata = useLive(() => get(queuePath(queue)), METADATA_EVERY, [queue]);
  const sources = useSources(queue).value;
  const dead = metadata.value?._dead_letter_queue;
  const letters = useLive(async () => (dead ? get(queuePath(dead, "/depth")) : undefined), LETTERS_EVERY, [dead]);
  const again = () => [figures, letters, exists].forEach((found) => found.again());
  const parts = { route, metadata, dead, sources, depth, letters: letters.value, again };
  if (exists.value === false && figures.value) return html`<${Title} route=${route} /><${Missing} route=${route} again=${again} />`;
  return html`<${Title} route=${route}>
      <${PauseButton} queue=${queue} metadata=${metadata.value} done=${metadata.again} />
      <${Act} rule="queues:purge" onClick=${() => askToPurge([queue], again)}>Purge…</${Act}>
      <${Act} rule="queues:delete" kind="danger" onClick=${() => askToDelete([queue], () => go(to(project)))}>Delete…</${Act}>
    </${Title}>
    <${Paused} queue=${queue} metadata=${metadata.value} done=${metadata.again} />
    <${Stale} found=${figures} />
    ${waiting(figures) ?? html`<${Figures} route=${route} found=${figures} dead=${dead} letters=${letters.value} sources=${sources} />`}
    <${Sources} project=${project} sources=${sources} />
    ${metadata.value && html`<${Words} project=${project} metadata=${metadata.value} />`}
    <${Tabs} ...${parts} /><${Shown} ...${parts} />`;
}

/** Whether the queue exists. A listing tells: a request for a missing queue gets the defaults. */
async function isThere(queue) {
  if (!may("queues:get_all")) return true;
  const last = queue.charCodeAt(queue.length - 1);
  const before = `${queue.slice(0, -1)}${String.fromCharCode(last - 1)}~`;
  const { queues } = await get("queues", { marker: before, limit: 1 });
  return queues[0]?.name === queue;
}

function Title({ route, children }) {
  return html`<div class="title">
    <div><p class="crumb"><a href=${to(route.project)}>Queues</a></p><h1>${visible(route.queue)}</h1></div>
    <div class="row">${children}</div>
  </div>`;
}

/** In place of the figures and parts of a queue that does not exist. */
function Missing({ route, again }) {
  const { project, queue, query } = route;
  const create = () => call("PUT", queuePath(queue), { body: "{}" }).then(() => announce(`The queue ${visible(queue)} was created.`)).then(again, (fault) => announce(fault.message, true));
  return html`<${Empty} title="Queue not found">
      <p>Check the name, or create the queue.</p>
      <div class="row">
        <a class="button" href=${to(project, queue, { tab: "post" })}>Post a message</a>
        <${Act} rule="queues:create" onClick=${create}>Create the queue</${Act}>
      </div>
    </${Empty}>
    ${query.tab === "post" && html`<${Post} route=${route} done=${again} />`}`;
}

function Words({ project, metadata }) {
  const link = (name) => html`<a href=${to(project, name)}>${visible(name)}</a>`;
  const dead = metadata._dead_letter_queue;
  const most = metadata._max_claim_count;
  const delay = metadata._default_message_delay;
  const kept = metadata._history_ttl;
  return html`<p class="words">
    Messages expire after ${age(metadata._default_message_ttl)} by default${delay > 0 && ` and are delayed by ${age(delay)}`}.${" "}
    ${dead && most !== null && most !== undefined && most >= 0 && html`After ${several(most, "claim")}, messages move to ${link(dead)}. `}
    ${dead && (most === null || most === undefined) && html`Buried messages move to ${link(dead)}. `}
    ${metadata._redelivery_delay > 0 && `Released messages are delayed by ${age(metadata._redelivery_delay)}. `}
    ${kept > 0 ? `The history keeps finished messages for ${age(kept)}.` : "Finished messages are not kept."}
    ${metadata._enable_encrypt_messages === true && " Bodies are encrypted in the store."}
  </p>`;
}

function Tabs({ route, depth, dead, sources, letters, metadata }) {
  const { project, queue, query } = route;
  const now = query.tab ?? query.state ?? "ready";
  const tab = (key, label, address) =>
    html`<li key=${key}><a href=${to(project, queue, address)} aria-current=${now === key ? "page" : undefined}>${label}</a></li>`;
  const state = (key, label) => tab(key, depth ? `${label} ${counted(depth, key)}` : label, { state: key === "ready" ? "" : key });
  const part = (key, label) => tab(key, label, { tab: key });
  const history = metadata.value?._history_ttl > 0;
  return html`<nav class="tabs" aria-label="Queue sections">
    <ul>
      ${state("ready", "Ready")} ${state("delayed", "Delayed")} ${state("claimed", "Claimed")}
      ${(dead || now === "dead") && tab("dead", letters ? `Dead letters ${count(letters.ready)}` : "Dead letters", { state: "dead" })}
      ${(history || now === "history") && tab("history", "History", { state: "history" })}
      ${part("post", "Post")} ${part("claim", "Claim")}
      ${(dead || sources?.length > 0 || now === "redrive") && part("redrive", "Redrive")}
      ${part("metadata", "Metadata")} <li><a href=${at(project, "subscriptions", { queue })}>Subscriptions</a></li>
    </ul>
  </nav>`;
}

function Shown(parts) {
  const { route, metadata, dead, depth, again } = parts;
  const { tab, m, state } = route.query;
  const [turn, setTurn] = useState(0);
  const changed = () => {
    again();
    setTurn(turn + 1);
  };
  if (tab) return html`<${Part} ...${parts} />`;
  return html`<div class=${m ? "split open" : "split"}>
    <div class="list"><${Listing} key=${turn} route=${route} state=${state} dead=${dead} depth=${depth} known=${metadata.value} /></div>
    ${m && html`<${Message} key=${m} route=${route} queue=${state === "dead" && dead ? dead : route.queue} id=${m} changed=${changed} />`}
  </div>`;
}

function Part({ route, metadata, dead, sources, again }) {
  const { tab } = route.query;
  if (tab === "post") return html`<${Post} route=${route} metadata=${metadata.value} done=${again} />`;
  if (tab === "claim") return html`<${ByHand} route=${route} metadata=${metadata.value} />`;
  if (tab === "redrive") return metadata.value && html`<${Redrive} key=${`${route.queue} ${dead}`} route=${route} dead=${dead} sources=${sources} done=${again} />`;
  if (tab === "metadata") return html`<${Metadata} route=${route} done=${metadata.again} />`;
  return html`<${Empty} title="Page not found"></${Empty}>`;
}

function Listing({ route, state, dead, depth, known }) {
  if (state === "history") return html`<${History} route=${route} />`;
  if (state !== "dead") return html`<${Messages} key=${state} route=${route} state=${state in STATES ? state : "ready"} depth=${depth} />`;
  if (dead) return html`<${Messages} key=${dead} route=${route} queue=${dead} />`;
  return known && html`<${Empty} title="This queue has no dead-letter queue"><p>To set one, edit the <a href=${to(route.project, route.queue, { tab: "metadata" })}>metadata</a>.</p></${Empty}>`;
}
