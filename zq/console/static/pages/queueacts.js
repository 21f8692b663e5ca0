// SPDX-License-Identifier: Apache-2.0
// What is done to whole queues, and the dialog before it.

import { call, queuePath } from "../api.js";
import { announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { go, to } from "../route.js";
import { count, several, visible } from "../text.js";

const NAME = "[A-Za-z0-9_.\\-]{1,64}";

/** Ask for a name, and make a queue of it. */
export function askToCreate(project) {
  const body = html`<label class="field">
    <span>Name: 1 to 64 characters from A-Z a-z 0-9 _ - and the dot</span>
    <input type="text" id="new-queue" autocomplete="off" spellcheck=${false} required pattern=${NAME} />
  </label>`;
  const act = async () => {
    const name = document.getElementById("new-queue").value;
    const answer = await call("PUT", queuePath(name), { body: "{}" });
    announce(answer.status === 201 ? `The queue ${name} was created.` : `The queue ${name} existed already.`);
    go(to(project, name));
  };
  ask({ title: "Create a queue", verb: "Create", harmless: true, body, act });
}

/** `stats`: by name, what was counted last. `done`: told the names that were purged. */
export function askToPurge(names, stats, done) {
  const total = names.reduce((sum, name) => sum + (stats.get(name)?.total ?? 0), 0);
  const body = html`<p>All messages go, ${several(total, "message")} as counted last, delayed and claimed ones too, and all claims and subscriptions.</p>
    <${Named} names=${names} stats=${stats} />
    <p>Metadata and history stay.</p>`;
  const act = async () => {
    for (const name of names) await call("POST", queuePath(name, "/purge"));
    announce(`${several(total, "message")} of ${listed(names)} were purged.`);
    done(names);
  };
  ask({ title: `Purge ${listed(names)}`, verb: "Purge", typed: typed(names), body, act });
}

/** As `askToPurge`. */
export function askToDelete(names, stats, done) {
  const total = names.reduce((sum, name) => sum + (stats.get(name)?.total ?? 0), 0);
  const body = html`<p>The ${names.length === 1 ? "queue goes" : "queues go"} with metadata, history, claims and ${several(total, "message")} as counted last. Nothing stays.</p>
    <${Named} names=${names} stats=${stats} />`;
  const act = async () => {
    for (const name of names) await call("DELETE", queuePath(name));
    announce(`${listed(names)} ${names.length === 1 ? "was" : "were"} deleted.`);
    done(names);
  };
  ask({ title: `Delete ${listed(names)}`, verb: "Delete", typed: typed(names), body, act });
}

function Named({ names, stats }) {
  return html`<ul class="named">
    ${names.map((name) => html`<li key=${name}>${visible(name)}: <span>${count(stats.get(name)?.free)} waiting, ${count(stats.get(name)?.claimed)} claimed</span></li>`)}
  </ul>`;
}

function listed(names) {
  return names.length === 1 ? visible(names[0]) : `${names.length} queues`;
}

function typed(names) {
  return names.length === 1 ? names[0] : `${names.length} queues`;
}
