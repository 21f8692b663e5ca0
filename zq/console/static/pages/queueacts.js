// SPDX-License-Identifier: Apache-2.0
// What is done to whole queues, and the dialog before it.

import { call, get, queuePath } from "../api.js";
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

/** Ask whether all messages go. `done`: told the names that were purged. */
export function askToPurge(names, done) {
  const act = async (total) => {
    for (const name of names) await call("POST", queuePath(name, "/purge"));
    announce(`${several(total, "message")} of ${listed(names)} were purged.`);
    done(names);
  };
  askCounted(names, "Purge", ofPurge, act);
}

function ofPurge(total) {
  return html`<p>All messages go, ${several(total, "message")} as counted now, delayed and claimed ones too, and all claims and subscriptions. Metadata and history stay.</p>`;
}

/** As `askToPurge`. */
export function askToDelete(names, done) {
  const act = async () => {
    for (const name of names) await call("DELETE", queuePath(name));
    announce(`${listed(names)} ${names.length === 1 ? "was" : "were"} deleted.`);
    done(names);
  };
  const body = (total) => html`<p>The ${names.length === 1 ? "queue goes" : "queues go"} with metadata, history, claims and ${several(total, "message")} as counted now. Nothing stays.</p>`;
  askCounted(names, "Delete", body, act);
}

/** Count first what is there, so that the dialog never tells what it does not know. `act` is told the sum. */
function askCounted(names, verb, body, act) {
  const counted = Promise.all(names.map(async (name) => [name, (await get(queuePath(name, "/stats"))).messages]));
  const open = (stats) => {
    const total = stats.reduce((sum, [, { total: here }]) => sum + here, 0);
    const whole = html`<${Named} stats=${stats} />${body(total)}`;
    ask({ title: `${verb} ${listed(names)}`, verb, typed: typed(names), body: whole, act: () => act(total) });
  };
  counted.then(open, (fault) => announce(fault.message, true));
}

function Named({ stats }) {
  return html`<ul class="named">
    ${stats.map(([name, { free, claimed }]) => html`<li key=${name}>${visible(name)}: <span>${count(free)} waiting, ${count(claimed)} claimed</span></li>`)}
  </ul>`;
}

function listed(names) {
  return names.length === 1 ? visible(names[0]) : `${names.length} queues`;
}

function typed(names) {
  return names.length === 1 ? names[0] : `${names.length} queues`;
}
