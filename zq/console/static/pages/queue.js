// SPDX-License-Identifier: Apache-2.0
// One queue: its figures, its metadata in words, and below what can be looked at and done.

import { useState } from "preact/hooks";
import { get, queuePath } from "../api.js";
import { useLive } from "../live.js";
import { Act } from "../parts/act.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { age, count, counted, several, visible } from "../text.js";
import { at, go, to } from "../route.js";
import { ByHand } from "./claim.js";
import { Figures, useFigures } from "./figures.js";
import { History } from "./history.js";
import { Message } from "./message.js";
import { Messages, STATES } from "./messages.js";
import { Metadata } from "./metadata.js";
import { PauseButton, Paused } from "./pausing.js";
import { Post } from "./post.js";
import { askToDelete, askToPurge } from "./queueacts.js";
import { Redrive } from "./redrive.js";

const METADATA_EVERY = 20;
const LETTERS_EVERY = 10;

/** The page. */
export function Queue({ route }) {
  const { queue, project } = route;
  const figures = useFigures(route);
  const depth = figures.value?.now;
  const metadata = useLive(() => get(queuePath(queue)), METADATA_EVERY, [queue]);
  const dead = metadata.value?._dead_letter_queue;
  const letters = useLive(async () => (dead ? get(queuePath(dead, "/depth")) : undefined), LETTERS_EVERY, [dead]);
  const again = () => [figures, letters].forEach((found) => found.again());
  return html`<p class="crumb"><a href=${to(project)}>Queues</a></p>
    <div class="title">
      <h1>${visible(queue)}</h1>
      <div class="row">
        <${PauseButton} queue=${queue} metadata=${metadata.value} done=${metadata.again} />
        <${Act} rule="queues:purge" onClick=${() => askToPurge([queue], again)}>Purge…</${Act}>
        <${Act} rule="queues:delete" kind="danger" onClick=${() => askToDelete([queue], () => go(to(project)))}>Delete…</${Act}>
      </div>
    </div>
    <${Paused} queue=${queue} metadata=${metadata.value} done=${metadata.again} />
    <${Stale} found=${figures} />
    ${waiting(figures) ?? html`<${Figures} route=${route} found=${figures} dead=${dead} letters=${letters.value} />`}
    ${metadata.value && html`<${Words} project=${project} metadata=${metadata.value} />`}
    <${Tabs} route=${route} depth=${depth} dead=${dead} letters=${letters.value} history=${metadata.value?._history_ttl > 0} />
    <${Shown} route=${route} metadata=${metadata} dead=${dead} depth=${depth} again=${again} />`;
}

function Words({ project, metadata }) {
  const link = (name) => html`<a href=${to(project, name)}>${visible(name)}</a>`;
  const dead = metadata._dead_letter_queue;
  const most = metadata._max_claim_count;
  const delay = metadata._default_message_delay;
  const kept = metadata._history_ttl;
  return html`<p class="words">
    Messages live ${age(metadata._default_message_ttl)} unless a post says otherwise${delay > 0 && `, and wait ${age(delay)} first`}.${" "}
    ${dead && most !== null && most !== undefined && most >= 0 && html`After ${several(most, "claim")} they go to ${link(dead)}. `}
    ${dead && (most === null || most === undefined) && html`What is buried goes to ${link(dead)}. `}
    ${metadata._redelivery_delay > 0 && `What comes back waits ${age(metadata._redelivery_delay)}. `}
    ${kept > 0 ? `What is finished is in the history for ${age(kept)}.` : "What is finished leaves no history."}
    ${metadata._enable_encrypt_messages === true && " Bodies are encrypted in the store."}
  </p>`;
}

function Tabs({ route, depth, dead, letters, history }) {
  const { project, queue, query } = route;
  const now = query.tab ?? query.state ?? "ready";
  const tab = (key, label, address) =>
    html`<li key=${key}><a href=${to(project, queue, address)} aria-current=${now === key ? "page" : undefined}>${label}</a></li>`;
  const state = (key, label) => tab(key, depth ? `${label} ${counted(depth, key)}` : label, { state: key === "ready" ? "" : key });
  return html`<nav class="tabs" aria-label="Parts of the queue">
    <ul>
      ${state("ready", "Ready")} ${state("delayed", "Delayed")} ${state("claimed", "Claimed")}
      ${(dead || now === "dead") && tab("dead", letters ? `Dead letters ${count(letters.ready)}` : "Dead letters", { state: "dead" })}
      ${(history || now === "history") && tab("history", "History", { state: "history" })}
      ${tab("post", "Post", { tab: "post" })} ${tab("claim", "Claim by hand", { tab: "claim" })}
      ${tab("redrive", "Redrive", { tab: "redrive" })}
      ${tab("metadata", "Metadata", { tab: "metadata" })} <li><a href=${at(project, "subscriptions", { queue })}>Subscriptions</a></li>
    </ul>
  </nav>`;
}

function Shown({ route, metadata, dead, depth, again }) {
  const { tab, m, state } = route.query;
  const [turn, setTurn] = useState(0);
  const changed = () => {
    again();
    setTurn(turn + 1);
  };
  if (tab === "post") return html`<${Post} route=${route} metadata=${metadata.value} done=${again} />`;
  if (tab === "claim") return html`<${ByHand} route=${route} metadata=${metadata.value} />`;
  if (tab === "redrive") return html`<${Redrive} key=${route.queue} route=${route} done=${again} />`;
  if (tab === "metadata") return html`<${Metadata} route=${route} done=${metadata.again} />`;
  if (tab) return html`<${Empty} title="There is no such part"></${Empty}>`;
  return html`<div class=${m ? "split open" : "split"}>
    <div class="list"><${Listing} key=${turn} route=${route} state=${state} dead=${dead} depth=${depth} known=${metadata.value} /></div>
    ${m && html`<${Message} key=${m} route=${route} queue=${state === "dead" && dead ? dead : route.queue} id=${m} changed=${changed} />`}
  </div>`;
}

function Listing({ route, state, dead, depth, known }) {
  if (state === "history") return html`<${History} route=${route} />`;
  if (state !== "dead") return html`<${Messages} key=${state} route=${route} state=${state in STATES ? state : "ready"} depth=${depth} />`;
  if (dead) return html`<${Messages} key=${dead} route=${route} queue=${dead} />`;
  return known && html`<${Empty} title="It has no dead letter queue"><p>Its <a href=${to(route.project, route.queue, { tab: "metadata" })}>metadata</a> name none.</p></${Empty}>`;
}
