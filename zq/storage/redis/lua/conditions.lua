-- SPDX-License-Identifier: Apache-2.0
-- Conditions of scripts: idempotency keys, whose results are stored, and fences.

---- part conditions

-- Part of scripts whose effect depends on an idempotency key or a fence. If they reject the request, they return a
-- table; see store.py.

local KNOWN = '>I8I2'

-- Returns the stored result of a repeated request, or nil if the key is new. The two keys begin at KEYS[at].
local function known(at, key, now)
  local kept = redis.call('HGET', KEYS[at], key)
  if kept and struct.unpack(KNOWN, kept) > now then return { 'known', kept } end
  return nil
end

-- Stores the result of the first request until `expires`.
local function remember(at, key, digest, expires, answer, score)
  redis.call('HSET', KEYS[at], key, struct.pack(KNOWN, expires, #digest) .. digest .. answer)
  redis.call('ZADD', KEYS[at + 1], score or expires, key)
end

-- Returns nil if the epoch is the latest of the fence, or if the request names no fence.
local function fenced(key, name, epoch)
  if name == '' or tonumber(redis.call('HGET', key, name) or 0) == epoch then return nil end
  return { 'fenced' }
end

---- part guarding

-- Part of scripts that take effect only if a document has an expected value; documents.py describes its layout.

-- Returns nil if the next key, a project's documents, has the value in ARGV for the title in ARGV ("" = the document is
-- missing). If the title is "", there is no condition.
local function outdated()
  local documents, title, expected = KEYS[keys(1)], argument(), argument()
  if title == '' then return nil end
  local packed, value = redis.call('HGET', documents, title), ''
  if packed then
    local _, length, at = struct.unpack('>I8I2', packed)
    value = string.sub(packed, at + length)
  end
  if value == expected then return nil end
  return { 'fenced' }
end

---- part remembering

-- Part of scripts that store or remove counted idempotency results of a queue. The scores of counted results are their
-- expiry minus COUNTS, which distinguishes them from results of earlier versions, which did not count them.

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
