/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* How many programs may stay loaded. On the CPU each takes some memory mappings (code, constants,
 * data), of which Linux gives a process 65530 by default. Without them the next program cannot be
 * loaded, nor can anything else be: long before, the ones not used for longest must go. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "engine/engine_internal.h"

enum {
  MOST_MAPPINGS_OF_A_PROGRAM = 128, /* assumed between two looks */
  FEWEST_BETWEEN_LOOKS = 16,
  MOST_BETWEEN_LOOKS = 1024
};

static size_t count_lines(const char *path) {
  char block[1 << 14];
  size_t lines = 0;
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  for (ssize_t n; (n = read(file, block, sizeof block)) > 0;) {
    for (ssize_t i = 0; i < n; ++i) lines += block[i] == '\n';
  }
  close(file);
  return lines;
}

static size_t read_number(const char *path, size_t otherwise) {
  char text[32];
  const int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return otherwise;
  const ssize_t n = read(file, text, sizeof text - 1);
  close(file);
  if (n <= 0) return otherwise;
  text[n] = '\0';
  const long long number = atoll(text);
  return number > 0 ? (size_t)number : otherwise;
}

void torus_room_init(torus_room_t *room, size_t most_programs) {
  room->most_mappings = read_number("/proc/sys/vm/max_map_count", 65530);
  room->most_programs = most_programs;
  room->next_look = 0;
}

static size_t clamp(size_t x, size_t least, size_t most) {
  return x < least ? least : x > most ? most : x;
}

bool torus_room_is_scarce(torus_room_t *room, size_t programs) {
  if (room->most_programs > 0 && programs >= room->most_programs) return true;
  if (programs < room->next_look) return false;
  const size_t wanted = room->most_mappings / 2;
  room->mappings = count_lines("/proc/self/maps");
  const size_t left = room->mappings < wanted ? wanted - room->mappings : 0;
  room->next_look = programs + clamp(left / MOST_MAPPINGS_OF_A_PROGRAM, FEWEST_BETWEEN_LOOKS,
                                     MOST_BETWEEN_LOOKS);
  return left == 0;
}

void torus_room_look_again(torus_room_t *room) { room->next_look = 0; }

torus_status_t torus_room_check(const torus_room_t *room) {
  if (room->mappings < room->most_mappings / 10 * 9) return TORUS_OK;
  return torus_status_make(
      TORUS_STATUS_RESOURCE_EXHAUSTED,
      "the process has %zu memory mappings of at most %zu, too many to load one more program; let "
      "go of captured graphs, or raise the limit (sysctl vm.max_map_count)",
      room->mappings, room->most_mappings);
}
