#!lua
-- SPDX-License-Identifier: Apache-2.0
-- Stores messages behind all others of a queue, all or none; creates the queue if it is missing.
-- KEYS: project, queue, its answers if the post has a key.
-- ARGV: now, queue's full name, expected metadata ("" = any); with a key: it, digest, until when it is kept, the
-- answer; then record and body of each message.
-- Returns "", or the metadata if they are others; then nothing is stored.

local q, now, full, expected = queue_at(4), number(), argument(), argument()
local key, digest, expires, answer
local once = #KEYS > 12 and keys(2)
if once then
  key, digest, expires, answer = argument(), argument(), number(), argument()
  local told = known(once, key, now)
  if told then return told end
end
if expected ~= '' then
  local metadata = redis.call('HGET', KEYS[2], name_of(full)) or '{}'
  if metadata ~= expected then return metadata end
end
local batch = batch_for(q, full, now)
for at = argument_at + 1, #ARGV, 2 do
  local record = ARGV[at]
  local available, expires, ttl = struct.unpack('>I8I8I8', record, 9)
  place(batch, id_of(record), available, expires, ttl, '', string.sub(record, 33), ARGV[at + 1])
end
store(batch)
if once then remember(once, key, digest, expires, answer) end
return ''
