// SPDX-License-Identifier: Apache-2.0
// What those who run a service look after: tokens, quotas, projects, pools and flavors; each as far as the caller may.

import { html } from "../parts/html.js";
import { Empty } from "../parts/states.js";
import { at } from "../route.js";
import { grafana, may, session } from "../session.js";
import { Flavors, Pools } from "./pools.js";
import { Projects } from "./projects.js";
import { Quota } from "./quota.js";
import { Tokens } from "./tokens.js";

// Each part: its name in addresses and for people, the rule to see it, what draws it.
const PARTS = [
  ["quota", "Quota", "quota:get", Quota],
  ["tokens", "Tokens", "tokens:get_all", Tokens],
  ["projects", "Projects", "admin:projects", Projects],
  ["pools", "Pools", "pools:get_all", Pools],
  ["flavors", "Flavors", "flavors:get_all", Flavors],
];

/** The page. */
export function Administration({ route }) {
  const parts = PARTS.filter(([, , rule]) => may(rule) && (rule !== "tokens:get_all" || session.me?.auth !== "none"));
  const now = parts.find(([name]) => name === (route.query.part ?? parts[0]?.[0]));
  const tab = ([name, label]) =>
    html`<li key=${name}><a href=${at(route.project, "admin", { part: name })} aria-current=${name === now?.[0] ? "page" : undefined}>${label}</a></li>`;
  return html`<div class="title"><h1>Administration</h1>${grafana && html`<a href=${grafana}>Grafana</a>`}</div>
    <nav class="tabs" aria-label="Parts of the administration"><ul>${parts.map(tab)}</ul></nav>
    ${now ? html`<${now[3]} key=${now[0]} route=${route} />` : html`<${Empty} title="There is nothing here for you"><p>Your credential shows no such part.</p></${Empty}>`}`;
}
