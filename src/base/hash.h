/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* A fast 64-bit hash for tables inside one process and for content keys. Not for secrets. The
 * value depends on the byte order of the machine. */
#ifndef TORUS_BASE_HASH_H_
#define TORUS_BASE_HASH_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Folds the 128-bit product: every bit of the result depends on every bit of both factors. */
static inline uint64_t torus_hash_mix(uint64_t a, uint64_t b) {
  __extension__ typedef unsigned __int128 wide_t;
  wide_t product = (wide_t)a * b;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t torus_hash_rotate(uint64_t value) { return value << 23 | value >> 41; }

/* Order matters: combine(a, b) differs from combine(b, a). The rotated term keeps |hash| when
 * |value| happens to make a factor zero. */
static inline uint64_t torus_hash_combine(uint64_t hash, uint64_t value) {
  return torus_hash_mix(hash ^ UINT64_C(0x9e3779b97f4a7c15),
                        value ^ UINT64_C(0xe7037ed1a0b428db)) +
         torus_hash_rotate(hash);
}

static inline uint64_t torus_hash_load(const void *bytes, size_t size_bytes) {
  uint64_t word = 0;
  memcpy(&word, bytes, size_bytes);
  return word;
}

static inline uint64_t torus_hash_bytes(const void *bytes, size_t size_bytes, uint64_t seed) {
  const unsigned char *at = bytes;
  uint64_t hash = torus_hash_combine(seed, size_bytes);
  size_t left = size_bytes;
  for (; left >= 16; left -= 16, at += 16) {
    hash = torus_hash_mix(torus_hash_load(at, 8) ^ hash,
                          torus_hash_load(at + 8, 8) ^ UINT64_C(0x8ebc6af09c88c6e3)) +
           torus_hash_rotate(hash);
  }
  if (left >= 8) {
    hash = torus_hash_combine(hash, torus_hash_load(at, 8));
    left -= 8;
    at += 8;
  }
  if (left) hash = torus_hash_combine(hash, torus_hash_load(at, left));
  return torus_hash_mix(hash ^ UINT64_C(0xa0761d6478bd642f), UINT64_C(0xe7037ed1a0b428db));
}

#endif /* TORUS_BASE_HASH_H_ */
