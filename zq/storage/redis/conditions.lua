-- SPDX-License-Identifier: Apache-2.0
-- Part of scripts whose effect depends on a key that the queue may know, or on a fence. What they refuse they answer
-- with a table: refusals.py says which.

local KNOWN = '>I8I2'

-- What a repeat is to be told; nil if the key is new. The two keys begin at KEYS[at].
local function known(at, key, now)
  local told = redis.call('HGET', KEYS[at], key)
  if told and struct.unpack(KNOWN, told) > now then return { 'known', told } end
  return nil
end

-- Keeps the first answer until `expires`.
local function remember(at, key, digest, expires, answer)
  redis.call('HSET', KEYS[at], key, struct.pack(KNOWN, expires, #digest) .. digest .. answer)
  redis.call('ZADD', KEYS[at + 1], expires, key)
end

-- nil if the epoch is the last one given out, or no fence is named.
local function fenced(key, name, epoch)
  if name == '' or tonumber(redis.call('HGET', key, name) or 0) == epoch then return nil end
  return { 'fenced' }
end
