// SPDX-License-Identifier: Apache-2.0
// One queue: its figures, its metadata in words, and below what can be looked at and done.

import { get, queuePath } from "../api.js";
import { useClock, useLive } from "../live.js";
import { Act } from "../parts/act.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { age, clock, count, several, visible } from "../text.js";
import { at, go, to } from "../route.js";
import { ByHand } from "./claim.js";
import { History } from "./history.js";
import { Message } from "./message.js";
import { Messages } from "./messages.js";
import { Metadata } from "./metadata.js";
import { PauseButton, Paused } from "./pausing.js";
import { Post } from "./post.js";
import { askToDelete, askToPurge } from "./queueacts.js";
import { Redrive } from "./redrive.js";

const FIGURES_EVERY = 2;
const METADATA_EVERY = 20;

/** The page. */
export function Queue({ route }) {
  const { queue, project } = route;
  const stats = useLive(async () => (await get(queuePath(queue, "/stats"))).messages, FIGURES_EVERY, [queue]);
  const metadata = useLive(() => get(queuePath(queue)), METADATA_EVERY, [queue]);
  return html`<p class="crumb"><a href=${to(project)}>Queues</a></p>
    <div class="title">
      <h1>${visible(queue)}</h1>
      <div class="row">
        <${PauseButton} queue=${queue} metadata=${metadata.value} done=${metadata.again} />
        <${Act} rule="queues:purge" onClick=${() => askToPurge([queue], stats.again)}>Purge…</${Act}>
        <${Act} rule="queues:delete" kind="danger" onClick=${() => askToDelete([queue], () => go(to(project)))}>Delete…</${Act}>
      </div>
    </div>
    <${Paused} queue=${queue} metadata=${metadata.value} done=${metadata.again} />
    <${Stale} found=${stats} />
    ${waiting(stats) ?? html`<${Tiles} stats=${stats} />`}
    ${metadata.value && html`<${Words} project=${project} metadata=${metadata.value} />`}
    <${Tabs} route=${route} stats=${stats.value} metadata=${metadata.value} />
    <${Shown} route=${route} metadata=${metadata} stats=${stats} />`;
}

function Tiles({ stats }) {
  const now = useClock();
  const { free, claimed, total, oldest } = stats.value;
  const late = stats.fault !== null || now - stats.at > 10000;
  return html`<section aria-label="Figures" class=${late ? "tiles stale" : "tiles"}>
    <div class="tile first"><span class="name">Oldest message</span><span class="figure">${age(oldest?.age)}</span></div>
    <div class="tile"><span class="name">Waiting</span><span class="figure">${count(free)}</span><span class="quiet">ready or delayed</span></div>
    <div class="tile"><span class="name">Claimed</span><span class="figure">${count(claimed)}</span></div>
    <div class="tile"><span class="name">In all</span><span class="figure">${count(total)}</span></div>
    ${late && html`<p class="quiet asof">As of ${clock(stats.at)}, ${age((now - stats.at) / 1000)} ago.</p>`}
  </section>`;
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

function Tabs({ route, stats, metadata }) {
  const { project, queue, query } = route;
  const now = query.tab ?? query.state ?? "ready";
  const tab = (key, label, address) =>
    html`<li key=${key}><a href=${to(project, queue, address)} aria-current=${now === key ? "page" : undefined}>${label}</a></li>`;
  const history = metadata?._history_ttl > 0 || now === "history";
  return html`<nav class="tabs" aria-label="Parts of the queue">
    <ul>
      ${tab("ready", "Ready", {})} ${tab("all", `All ${stats ? count(stats.total) : ""}`, { state: "all" })}
      ${history && tab("history", "History", { state: "history" })}
      ${tab("post", "Post", { tab: "post" })} ${tab("claim", "Claim by hand", { tab: "claim" })}
      ${tab("redrive", "Redrive", { tab: "redrive" })}
      ${tab("metadata", "Metadata", { tab: "metadata" })} <li><a href=${at(project, "subscriptions", { queue })}>Subscriptions</a></li>
    </ul>
  </nav>`;
}

function Shown({ route, metadata, stats }) {
  const { tab, m, state } = route.query;
  if (tab === "post") return html`<${Post} route=${route} metadata=${metadata.value} done=${stats.again} />`;
  if (tab === "claim") return html`<${ByHand} route=${route} metadata=${metadata.value} />`;
  if (tab === "redrive") return html`<${Redrive} key=${route.queue} route=${route} done=${stats.again} />`;
  if (tab === "metadata") return html`<${Metadata} route=${route} done=${metadata.again} />`;
  if (tab) return html`<${Empty} title="There is no such part"></${Empty}>`;
  const list = state === "history" ? html`<${History} route=${route} />` : html`<${Messages} key=${state} route=${route} total=${stats.value?.total} />`;
  return html`<div class=${m ? "split open" : "split"}>
    <div class="list">${list}</div>
    ${m && html`<${Message} key=${m} route=${route} id=${m} changed=${stats.again} />`}
  </div>`;
}
