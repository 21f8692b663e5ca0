#!lua
-- SPDX-License-Identifier: Apache-2.0
-- Adds messages to a stage, all or none.
-- KEYS: project, queue, transactions, the stage's messages, answers if the request has a key.
-- ARGV: now, stage, queue, when a new stage expires, most bytes of bodies, most messages, least ttl in ms; with a key: it, digest,
-- until when it is kept, the answer; then record and body of each message. Returns "".

local now, name, queue, ends = number(), argument(), argument(), number()
local most, most_messages, least = number(), number(), number()
local t, content = transactions(), KEYS[keys(1)]
local key, digest, expires, answer
local once = #KEYS > key_at and keys(2)
if once then
  key, digest, expires, answer = argument(), argument(), number(), argument()
  local told = known(once, key, now)
  if told then return told end
end

local stage = staged(redis.call('HGET', t.stages, name), now)
if not stage then
  drop(t, name, content)
  stage = { expires = ends, bytes = 0, queues = {} }
end
for at = argument_at + 2, #ARGV, 2 do stage.bytes = stage.bytes + #ARGV[at] end
local count = (redis.call('LLEN', content) + #ARGV - argument_at) / 2
if stage.bytes > most or count > most_messages then return { 'full' } end

local index = #stage.queues + 1
for i, found in ipairs(stage.queues) do
  if found.name == queue then index = i end
end
stage.queues[index] = stage.queues[index] or { least = least, name = queue }
stage.queues[index].least = math.min(stage.queues[index].least, least)
local pieces = { struct.pack(STAGE, stage.expires, stage.bytes, #stage.queues) }
for i, found in ipairs(stage.queues) do
  pieces[i + 1] = struct.pack(STAGED_QUEUE, found.least, #found.name) .. found.name
end
redis.call('HSET', t.stages, name, table.concat(pieces))
redis.call('ZADD', t.staging, stage.expires, name)

local messages = {}
for at = argument_at + 1, #ARGV, 2 do
  messages[#messages + 1] = struct.pack('>I4', index) .. ARGV[at]
  messages[#messages + 1] = ARGV[at + 1]
end
put('RPUSH', content, messages)
if once then remember(once, key, digest, expires, answer) end
return ''
