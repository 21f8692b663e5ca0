#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Starts a claim anew. KEYS: project, queue, fences if one is named. ARGV: now, claim, ttl, grace, fence or "", epoch.
-- Returns "".

local q, now, claim, lease, grace, fence, epoch =
  queue_at(4), number(), argument(), number(), number(), argument(), number()
local refused = fenced(KEYS[13], fence, epoch)
if refused then return refused end
local messages = held(q, claim, now)
if #messages == 0 then return { 'unclaimed' } end
for _, m in ipairs(messages) do put_under(m, claim, now, lease, grace, m.available - m.ends) end
rewrite(q, messages)
return ''
