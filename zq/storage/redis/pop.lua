#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes ready messages from the front. KEYS: project, queue, history if there is one.
-- ARGV: now, limit, seconds of history.
-- Returns whether to look again (1 byte): too many had expired in front; records with bodies.

local q, now, limit, h = queue_at(4), number(), number(), history(number())
local found, more = take(q, limit, now)
local reply = answer_with(q, found, { more and '\1' or '\0' })
finish(q, h, found, now, POPPED)
return reply
