#!lua
-- SPDX-License-Identifier: Apache-2.0
-- Appends a batch to a project's log, and has the oldest ones fall off. KEYS: the log; answers if the request has a key.
-- ARGV: now, topic, number of messages, bytes of bodies, first and last expiry, bytes and number that are kept, the
-- messages, the channel; with a key: it, digest, until when it is kept. Returns the first sequence (8 bytes); 1 if more
-- has fallen off now than was removed, else 0 (1 byte).

local SLACK = 1 + 1 / 16  -- what is over is looked for when it is so much
local PER_MS = 512        -- sequences rise with the clock at least so fast: see decision 0011
local MAX_BY_CLOCK = 9e15

local log, now, topic, count, size = log_at(1), tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local messages = ARGV[9]
local once = #KEYS > LOG_KEYS and LOG_KEYS + 1
local told = once and known(once, ARGV[11], now)
if told then return told end

local counts = counts_of(log)
local former, dropped = counts.sequence, counts.dropped
local before = math.max(former, math.min(now * PER_MS, MAX_BY_CLOCK))
local last = before + count
local front = heading(topic) .. digits(last)
  .. struct.pack(FRONT, count, now, ARGV[5], ARGV[6], counts.published, counts.published_bytes)
redis.call('XADD', log.stream, entry_id(last), front, messages)
redis.call('ZADD', log.topics, 0, front)
redis.call('ZADD', log.fading, ARGV[6], front)
counts.sequence, counts.published, counts.published_bytes = last, counts.published + count, counts.published_bytes + size

fall(log, counts, tonumber(ARGV[7]), tonumber(ARGV[8]), SLACK)
remove_fallen(log, counts, MOST_GONE)
keep_counts(log, counts)
if once then remember(once, ARGV[11], ARGV[12], ARGV[13], string.format('%.0f', before + 1)) end

local pieces = {}
tell_batch(pieces, front, messages)
feed(ARGV[10], digits(former) .. table.concat(pieces))
local left = dropped < counts.dropped and counts.removed < counts.dropped
return struct.pack('>I8B', before + 1, left and 1 or 0)
