/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
#include "torus/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 2048 };

static const char *const names[] = {
#define LOG_NAME(name, spelling, colour) spelling,
    TORUS_LOG_LIST(LOG_NAME)
#undef LOG_NAME
};

static const int colours[] = {
#define LOG_COLOUR(name, spelling, colour) colour,
    TORUS_LOG_LIST(LOG_COLOUR)
#undef LOG_COLOUR
};

static atomic_uint categories_on; /* bit per category */
static atomic_int file_number = STDERR_FILENO;
static atomic_bool is_coloured, is_configured;
static pthread_mutex_t configure_lock = PTHREAD_MUTEX_INITIALIZER;
static double began; /* under configure_lock until the first category is on */

static double seconds_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void complain(const char *what, size_t length, const char *why) {
  fprintf(stderr, "torus: %.*s: %s\n", (int)length, what, why);
}

/* ---- setting up ---- */

static unsigned parse_one(const char *name, size_t length) {
  if (length == 0) return 0;
  if (length == 3 && memcmp(name, "all", 3) == 0) return (1U << TORUS_LOG_COUNT) - 1;
  for (int i = 0; i < TORUS_LOG_COUNT; ++i) {
    if (strlen(names[i]) == length && memcmp(names[i], name, length) == 0) return 1U << i;
  }
  complain(name, length, "no such log; TORUS_LOG takes compile, window, fallback, lines, all");
  return 0;
}

static unsigned parse(const char *list) {
  unsigned on = 0;
  while (list != NULL && *list != '\0') {
    const size_t length = strcspn(list, ", ");
    on |= parse_one(list, length);
    list += length + (list[length] != '\0');
  }
  return on;
}

static int open_file(const char *path) {
  if (path == NULL || *path == '\0') return STDERR_FILENO;
  const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (file >= 0) return file;
  complain(path, strlen(path), strerror(errno));
  return STDERR_FILENO;
}

/* A file in use is left open: another thread may be writing to it. */
static void configure(const char *categories, const char *path) {
  const unsigned on = parse(categories);
  const int file = on != 0 ? open_file(path) : STDERR_FILENO;
  if (began == 0) began = seconds_now();
  atomic_store(&file_number, file);
  atomic_store(&is_coloured, isatty(file) && getenv("NO_COLOR") == NULL);
  atomic_store(&categories_on, on);
  atomic_store(&is_configured, true);
}

void torus_log_configure(const char *categories, const char *path) {
  pthread_mutex_lock(&configure_lock);
  configure(categories, path);
  pthread_mutex_unlock(&configure_lock);
}

void torus_log_configure_from_environment(void) {
  pthread_mutex_lock(&configure_lock);
  if (!atomic_load(&is_configured)) configure(getenv("TORUS_LOG"), getenv("TORUS_LOG_FILE"));
  pthread_mutex_unlock(&configure_lock);
}

/* ---- writing ---- */

bool torus_log_is_on(torus_log_category_t category) {
  return (atomic_load_explicit(&categories_on, memory_order_relaxed) >> category & 1) != 0;
}

static size_t put_head(char *line, torus_log_category_t category) {
  const double seconds = seconds_now() - began;
  const int n = atomic_load(&is_coloured)
                    ? snprintf(line, LINE_BYTES, "\x1b[2m[torus %.3f \x1b[0;%dm%s\x1b[0;2m]\x1b[0m ",
                               seconds, colours[category], names[category])
                    : snprintf(line, LINE_BYTES, "[torus %.3f %s] ", seconds, names[category]);
  return n > 0 ? (size_t)n : 0;
}

void torus_log(torus_log_category_t category, const char *format, ...) {
  if (!torus_log_is_on(category)) return;
  char line[LINE_BYTES];
  size_t size = put_head(line, category);
  va_list list;
  va_start(list, format);
  const int n = vsnprintf(line + size, sizeof line - size, format, list);
  va_end(list);
  if (n > 0) size += (size_t)n;
  if (size > sizeof line - 1) size = sizeof line - 1;
  line[size++] = '\n';
  /* A line that cannot be written is lost: there is nowhere to say so. */
  const ssize_t written = write(atomic_load(&file_number), line, size);
  (void)written;
}
