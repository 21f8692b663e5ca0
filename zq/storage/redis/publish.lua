#!lua
-- SPDX-License-Identifier: Apache-2.0
-- Appends a batch to a project's log, and has the oldest ones fall off. KEYS: the log; answers if the request has a key.
-- ARGV: now, topic, number of messages, bytes of bodies, first and last expiry, bytes and number that are kept, the
-- messages, the channel; with a key: it, digest, until when it is kept. Returns the first sequence.

local SLACK = 1 + 1 / 16  -- what is over is looked for when it is so much
local SLICE = 32          -- batches that have fallen off which one call removes

local log, now, topic, count, size = log_at(1), tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local keep_bytes, keep_messages, messages = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local once = #KEYS > LOG_KEYS and LOG_KEYS + 1
local told = once and known(once, ARGV[11], now)
if told then return told end

-- published: messages and bytes ever; fallen: those before the first batch that is kept; removed: what is dropped up to
-- there is not in the stream any more.
local state = redis.call('HMGET', log.counts, 'published', 'published_bytes', 'fallen', 'fallen_bytes', 'dropped',
  'removed', 'sequence', 'start')
for i = 1, 7 do state[i] = tonumber(state[i] or 0) end
local published, published_bytes, fallen, fallen_bytes, dropped, removed, sequence = unpack(state, 1, 7)
local start = tonumber(state[8] or now * PER_MS - sequence)

local before = counted(sequence, start, now)
local last = before + count
local front = heading(topic) .. digits(last)
  .. struct.pack(FRONT, count, now, ARGV[5], ARGV[6], published, published_bytes)
redis.call('XADD', log.stream, entry_id(last), front, messages)
redis.call('ZADD', log.topics, 0, front)
redis.call('ZADD', log.fading, ARGV[6], digits(last))
published, published_bytes = published + count, published_bytes + size

-- The first batch of last sequence from `sequence` on, and whether it is to be kept. The newest one stays.
local function judged(sequence)
  local batch = opened(redis.call('XRANGE', log.stream, entry_id(sequence), '+', 'COUNT', 1)[1][2][1])
  local fits = published - batch.messages <= keep_messages and published_bytes - batch.bytes <= keep_bytes
  return batch, fits or batch.last == last
end

if published - fallen > keep_messages * SLACK or published_bytes - fallen_bytes > keep_bytes * SLACK then
  local low, high = dropped + 1, last
  while low < high do
    local middle = math.floor((low + high) / 2)
    local batch, stays = judged(middle)
    if stays then high = middle else low = batch.last + 1 end
  end
  local oldest = judged(low)
  dropped, fallen, fallen_bytes = low - 1, oldest.messages, oldest.bytes
end
if removed < dropped then
  local gone = {}
  for i, entry in ipairs(redis.call('XRANGE', log.stream, '-', entry_id(dropped), 'COUNT', SLICE)) do
    gone[i] = entry[2][1]
  end
  discard(log, gone)
  if #gone < SLICE then removed = dropped end
end
redis.call('HSET', log.counts, 'sequence', last, 'published', published, 'published_bytes', published_bytes,
  'fallen', fallen, 'fallen_bytes', fallen_bytes, 'dropped', dropped, 'removed', removed, 'start', start)
if once then remember(once, ARGV[11], ARGV[12], ARGV[13], string.format('%.0f', before + 1)) end

local pieces = {}
tell_batch(pieces, front, messages)
feed(ARGV[10], digits(sequence) .. table.concat(pieces))
return before + 1
