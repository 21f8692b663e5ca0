-- SPDX-License-Identifier: Apache-2.0
-- What a script's effect may depend on: keys of requests, whose answers are remembered, and fences.

---- part conditions

-- Part of scripts whose effect depends on a key that the queue may know, or on a fence. What they refuse they answer
-- with a table: store.py says which.

local KNOWN = '>I8I2'

-- What a repeat is answered; nil if the key is new. The two keys begin at KEYS[at].
local function known(at, key, now)
  local kept = redis.call('HGET', KEYS[at], key)
  if kept and struct.unpack(KNOWN, kept) > now then return { 'known', kept } end
  return nil
end

-- Keeps the first answer until `expires`.
local function remember(at, key, digest, expires, answer, score)
  redis.call('HSET', KEYS[at], key, struct.pack(KNOWN, expires, #digest) .. digest .. answer)
  redis.call('ZADD', KEYS[at + 1], score or expires, key)
end

-- nil if the epoch is the last one given out, or no fence is named.
local function fenced(key, name, epoch)
  if name == '' or tonumber(redis.call('HGET', key, name) or 0) == epoch then return nil end
  return { 'fenced' }
end

---- part remembering

-- Part of scripts that remember or forget answers of a queue, which count. The scores of those that do are less by
-- COUNTS than until when they are known, so that they are told from those of versions that did not count.

local COUNTS = 0.25

local function has_counted(score) return score and tonumber(score) % 1 ~= 0 end

local function remember_for(name, at, key, digest, expires, answer)
  local former = redis.call('HSTRLEN', KEYS[at], key)
  local counts = former > 0 and has_counted(redis.call('ZSCORE', KEYS[at + 1], key))
  former = counts and former + OVERHEAD or 0
  remember(at, key, digest, expires, answer, expires - COUNTS)
  local size = redis.call('HSTRLEN', KEYS[at], key) + OVERHEAD
  add_usage(0, add_to_part(ANSWERED .. name, size - former))
end
