// SPDX-License-Identifier: Apache-2.0
// What is done to whole queues and topics, and the dialog before it.

import { call, get, queuePath, topicPath } from "../api.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { Empty } from "../parts/states.js";
import { go, to, toTopic } from "../route.js";
import { count, several, visible } from "../text.js";

/** Pattern of the names of queues and topics. */
export const NAME = "[A-Za-z0-9_.\\-]{1,64}";

// What differs between the two. `here`: what is counted; `purged`, `gone`: how the dialogs go on.
const KINDS = {
  queue: {
    path: queuePath,
    href: to,
    here: ({ free, claimed }) => `${count(free)} ready or delayed, ${count(claimed)} claimed`,
    purged: "claims and subscriptions are deleted. Metadata and history are kept.",
    gone: "metadata, history, claims",
  },
  topic: {
    path: topicPath,
    href: toTopic,
    here: ({ total }) => several(total, "message"),
    purged: "subscriptions are deleted. Metadata is kept.",
    gone: "metadata, subscriptions",
  },
};

/** Ask for a name, and make a queue or a topic of it. */
export function askToCreate(project, kind = "queue") {
  const { path, href } = KINDS[kind];
  const body = html`<label class="field">
    <span>Name (1 to 64 letters, digits, _, - and dots)</span>
    <input type="text" id="new-name" autocomplete="off" spellcheck=${false} required pattern=${NAME} />
  </label>`;
  const act = async () => {
    const name = document.getElementById("new-name").value;
    const answer = await call("PUT", path(name), { body: "{}" });
    announce(answer.status === 201 ? `The ${kind} ${name} was created.` : `The ${kind} ${name} already exists.`);
    go(href(project, name));
  };
  ask({ title: `Create a ${kind}`, verb: "Create", harmless: true, body, act });
}

/** Ask whether all messages go. `done`: told the names that were purged. */
export function askToPurge(names, done, kind = "queue") {
  const { path, purged } = KINDS[kind];
  const act = async (total) => {
    for (const name of names) await call("POST", path(name, "/purge"));
    announce(`Purged ${several(total, "message")} from ${listed(names, kind)}.`);
    done(names);
  };
  const body = (total) => html`<p>All messages (${count(total)}) and all ${purged}</p>`;
  askCounted(names, kind, "Purge", body, act);
}

/** As `askToPurge`. */
export function askToDelete(names, done, kind = "queue") {
  const { path, gone } = KINDS[kind];
  const act = async () => {
    for (const name of names) await call("DELETE", path(name));
    announce(`${listed(names, kind)} ${names.length === 1 ? "was" : "were"} deleted.`);
    done(names);
  };
  const body = (total) => html`<p>The ${names.length === 1 ? `${kind} is` : `${kind}s are`} deleted with all messages (${count(total)}), ${gone}. You cannot undo this.</p>`;
  askCounted(names, kind, "Delete", body, act);
}

/** Count first what is there, so that the dialog never tells what it does not know. `act` is told the sum. */
function askCounted(names, kind, verb, body, act) {
  const { path, here } = KINDS[kind];
  const counted = Promise.all(names.map(async (name) => [name, (await get(path(name, "/stats"))).messages]));
  const open = (stats) => {
    const total = stats.reduce((sum, [, { total: one }]) => sum + one, 0);
    const named = stats.map(([name, messages]) => html`<li key=${name}>${visible(name)}: <span>${here(messages)}</span></li>`);
    const whole = html`<ul class="named">${named}</ul>${body(total)}`;
    const typed = names.length === 1 ? names[0] : `${names.length} ${kind}s`;
    ask({ title: `${verb} ${listed(names, kind)}`, verb, typed, body: whole, act: () => act(total) });
  };
  counted.then(open, (fault) => announce(fault.message, true));
}

function listed(names, kind) {
  return names.length === 1 ? visible(names[0]) : `${names.length} ${kind}s`;
}

/** The buttons for selected queues or topics. `gone` is called with the names that were purged or deleted. */
export function Selected({ names, gone, kind }) {
  if (!names.length) return null;
  return html`<span class="quiet">${several(names.length, kind)} selected</span>
    <${Act} rule=${`${kind}s:purge`} onClick=${() => askToPurge(names, gone, kind)}>Purge…</${Act}>
    <${Act} rule=${`${kind}s:delete`} kind="danger" onClick=${() => askToDelete(names, gone, kind)}>Delete…</${Act}>`;
}

/** In place of an empty table. `command`: posts a message; `sample`: name of a queue or topic in the example. */
export function Nothing({ route, kind, command, sample }) {
  if (route.query.name) return html`<${Empty} title=${`No matching ${kind}s`}><p>The search is case-sensitive.</p></${Empty}>`;
  return html`<${Empty} title=${`This project has no ${kind}s`}>
    <p>A message creates its ${kind}: <code>zq ${command} --project ${visible(route.project)} ${sample} '{"hello": 1}'</code></p>
    <p><${Act} rule=${`${kind}s:create`} kind="main" onClick=${() => askToCreate(route.project, kind)}>Create a ${kind}</${Act}></p>
  </${Empty}>`;
}
