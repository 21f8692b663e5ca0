#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Gives back what a claim holds. KEYS: project, queue.
-- ARGV: now, claim, queue's full name, delay in seconds (-1: each as it was claimed). Returns "".

local q, now, claim, full, delay = queue_at(4), number(), argument(), argument(), number()
local messages = held(q, claim, now)
for _, m in ipairs(messages) do m.delay = delay end
give_back(q, full, messages, now)
return ''
