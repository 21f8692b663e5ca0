#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes ready messages from the front. KEYS: project, queue, history if there is one.
-- ARGV: now, limit, bytes of bodies, seconds of history.
-- Returns whether to look again (1 byte): too many had expired in front; how many expired ones went (4 bytes); records
-- with bodies.

local q, now, limit, most, h = queue_at(4), number(), number(), number(), history(number())
local found, more, expired = take(q, limit, now)
found = with_bodies(q, found, most)
local reply = answer_with(found, { more and '\1' or '\0', struct.pack('>I4', expired) })
finish(q, h, found, now, POPPED)
return reply
