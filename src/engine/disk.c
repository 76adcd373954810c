/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Compiled programs on disk, shared by processes.
 *
 * An entry is one file named by two 64-bit hashes of the program's key:
 *
 *     magic (8) | identity hash (8) | key bytes (8) | body bytes (8) | checksum of the rest (8)
 *     | key | body
 *
 * It is written under a temporary name and renamed, so that a reader sees a whole file or none. A
 * reader trusts nothing: wrong magic, lengths, checksum, identity (plugin, version, options) or key
 * count as absent, and the entry is replaced by the next write. Programs are code: folders that
 * other users may write to, and files of other users, are not used. The folder is kept under its
 * limit by removing the files used longest ago (modification time, renewed at each read). */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "engine/engine_internal.h"

#define MAGIC UINT64_C(0x3153555249544f54)
enum { PATH_BYTES = 4096, WRITES_PER_PRUNE = 64 };

struct torus_disk_cache {
  char *folder;
  int64_t limit_bytes;
  uint64_t identity;
  int writes;
};

typedef struct header {
  uint64_t magic, identity, key_bytes, body_bytes, checksum;
} header_t;

static torus_status_t make_folders(const char *path) {
  char partial[PATH_BYTES];
  if (strlen(path) >= sizeof partial) {
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT, "cache folder name is too long");
  }
  strcpy(partial, path);
  for (char *at = partial + 1; *at != '\0'; ++at) {
    if (*at != '/') continue;
    *at = '\0';
    mkdir(partial, 0700);
    *at = '/';
  }
  if (mkdir(partial, 0700) != 0 && errno != EEXIST) {
    return torus_status_make(TORUS_STATUS_UNAVAILABLE, "cannot make cache folder %s: %s", path,
                             strerror(errno));
  }
  return TORUS_OK;
}

/* Ours or the administrator's, and not for everybody to write. */
static bool is_trusted(const struct stat *info) {
  return (info->st_uid == geteuid() || info->st_uid == 0) && !(info->st_mode & S_IWOTH);
}

static torus_status_t check_folder(const char *path) {
  struct stat info;
  if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode)) {
    return torus_status_make(TORUS_STATUS_UNAVAILABLE, "%s is no folder", path);
  }
  if (!is_trusted(&info)) {
    return torus_status_make(TORUS_STATUS_FAILED_PRECONDITION,
                             "cache folder %s can be written by other users", path);
  }
  return TORUS_OK;
}

torus_status_t torus_disk_cache_create(const char *folder, int64_t limit_bytes,
                                       const char *identity, torus_disk_cache_t **out_disk) {
  *out_disk = NULL;
  TORUS_TRY(make_folders(folder));
  TORUS_TRY(check_folder(folder));
  torus_disk_cache_t *disk = torus_alloc(sizeof *disk);
  char *copy = torus_strdup(folder);
  if (disk == NULL || copy == NULL) {
    torus_free(disk);
    torus_free(copy);
    return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED, "out of host memory");
  }
  disk->folder = copy;
  disk->limit_bytes = limit_bytes;
  disk->identity = torus_hash_bytes(identity, strlen(identity), 1);
  *out_disk = disk;
  return TORUS_OK;
}

void torus_disk_cache_destroy(torus_disk_cache_t *disk) {
  if (disk == NULL) return;
  torus_free(disk->folder);
  torus_free(disk);
}

static bool entry_path(const torus_disk_cache_t *disk, const char *key, size_t key_bytes,
                       char *path) {
  const uint64_t a = torus_hash_bytes(key, key_bytes, disk->identity);
  const uint64_t b = torus_hash_bytes(key, key_bytes, ~disk->identity);
  const int n =
      snprintf(path, PATH_BYTES, "%s/%016" PRIx64 "%016" PRIx64 ".program", disk->folder, a, b);
  return n > 0 && n < PATH_BYTES;
}

/* ---- reading ---- */

static bool read_all(int file, char *bytes, size_t size) {
  while (size > 0) {
    const ssize_t n = read(file, bytes, size);
    if (n <= 0) return false;
    bytes += n;
    size -= (size_t)n;
  }
  return true;
}

static uint64_t checksum(const char *content, size_t size, uint64_t identity) {
  return torus_hash_bytes(content, size, identity ^ MAGIC);
}

static bool header_fits(const torus_disk_cache_t *disk, const header_t *h, int64_t file_bytes,
                        size_t key_bytes) {
  const int64_t content = file_bytes - (int64_t)sizeof *h;
  return h->magic == MAGIC && h->identity == disk->identity && h->key_bytes == key_bytes &&
         content > 0 && (uint64_t)content > key_bytes &&
         h->body_bytes == (uint64_t)content - key_bytes;
}

/* The key and the body of an open entry, or NULL. */
static char *read_content(const torus_disk_cache_t *disk, int file, const char *key,
                          size_t key_bytes, size_t *out_body) {
  struct stat info;
  header_t h;
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode) || !is_trusted(&info)) return NULL;
  if (!read_all(file, (char *)&h, sizeof h)) return NULL;
  if (!header_fits(disk, &h, info.st_size, key_bytes)) return NULL;
  const size_t size = h.key_bytes + h.body_bytes;
  char *content = torus_alloc(size);
  if (content == NULL) return NULL;
  if (read_all(file, content, size) && checksum(content, size, disk->identity) == h.checksum &&
      memcmp(content, key, key_bytes) == 0) {
    *out_body = h.body_bytes;
    return content;
  }
  torus_free(content);
  return NULL;
}

void torus_disk_cache_read(torus_disk_cache_t *disk, const char *key, size_t key_bytes,
                           char **out_bytes, size_t *out_size) {
  char path[PATH_BYTES];
  *out_bytes = NULL;
  *out_size = 0;
  if (!entry_path(disk, key, key_bytes, path)) return;
  const int file = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return;
  char *content = read_content(disk, file, key, key_bytes, out_size);
  if (content != NULL) {
    memmove(content, content + key_bytes, *out_size);
    *out_bytes = content;
    futimens(file, NULL);
  }
  close(file);
}

/* ---- writing ---- */

static bool write_all(int file, const void *bytes, size_t size) {
  const char *at = bytes;
  while (size > 0) {
    const ssize_t n = write(file, at, size);
    if (n <= 0) return false;
    at += n;
    size -= (size_t)n;
  }
  return true;
}

static bool write_entry(int file, const torus_disk_cache_t *disk, const torus_strbuf_t *content,
                        size_t key_bytes) {
  const header_t h = {.magic = MAGIC,
                      .identity = disk->identity,
                      .key_bytes = key_bytes,
                      .body_bytes = content->size - key_bytes,
                      .checksum = checksum(content->data, content->size, disk->identity)};
  return write_all(file, &h, sizeof h) && write_all(file, content->data, content->size);
}

static void write_file(torus_disk_cache_t *disk, const char *path, const torus_strbuf_t *content,
                       size_t key_bytes) {
  char temporary[PATH_BYTES];
  const int n = snprintf(temporary, sizeof temporary, "%s/.new-XXXXXX", disk->folder);
  if (n <= 0 || n >= (int)sizeof temporary) return;
  const int file = mkostemp(temporary, O_CLOEXEC);
  if (file < 0) return;
  const bool is_written = write_entry(file, disk, content, key_bytes);
  if (close(file) != 0 || !is_written || rename(temporary, path) != 0) unlink(temporary);
}

/* ---- keeping the limit ---- */

typedef struct file_entry {
  char name[64];
  int64_t bytes;
  struct timespec used;
} file_entry_t;

static int older_first(const void *a, const void *b) {
  const file_entry_t *x = a, *y = b;
  if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
  if (x->used.tv_nsec != y->used.tv_nsec) return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
  return 0;
}

/* Temporary files that a killed process left behind are removed after an hour. */
static void remove_leftover(int folder, const char *name, const struct stat *info) {
  if (strncmp(name, ".new-", 5) == 0 && time(NULL) - info->st_mtime > 3600) {
    unlinkat(folder, name, 0);
  }
}

static size_t list_entries(DIR *dir, file_entry_t **out_entries, int64_t *out_total) {
  size_t count = 0, capacity = 0;
  *out_entries = NULL;
  *out_total = 0;
  for (struct dirent *d = readdir(dir); d != NULL; d = readdir(dir)) {
    struct stat info;
    if (fstatat(dirfd(dir), d->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0) continue;
    remove_leftover(dirfd(dir), d->d_name, &info);
    const size_t length = strlen(d->d_name);
    if (length < 9 || length >= 64 || strcmp(d->d_name + length - 8, ".program") != 0) continue;
    if (count == capacity) {
      capacity = capacity == 0 ? 256 : capacity * 2;
      file_entry_t *bigger = torus_realloc(*out_entries, capacity * sizeof *bigger);
      if (bigger == NULL) break;
      *out_entries = bigger;
    }
    file_entry_t *e = &(*out_entries)[count++];
    memcpy(e->name, d->d_name, length + 1);
    e->bytes = info.st_size;
    e->used = info.st_mtim;
    *out_total += info.st_size;
  }
  return count;
}

static void prune(torus_disk_cache_t *disk) {
  DIR *dir = opendir(disk->folder);
  if (dir == NULL) return;
  file_entry_t *entries;
  int64_t total;
  const size_t count = list_entries(dir, &entries, &total);
  if (total > disk->limit_bytes && count > 0) {
    qsort(entries, count, sizeof *entries, older_first);
    for (size_t i = 0; i < count && total > disk->limit_bytes * 9 / 10; ++i) {
      if (unlinkat(dirfd(dir), entries[i].name, 0) == 0) total -= entries[i].bytes;
    }
  }
  torus_free(entries);
  closedir(dir);
}

void torus_disk_cache_write(torus_disk_cache_t *disk, const char *key, size_t key_bytes,
                            const char *bytes, size_t size) {
  char path[PATH_BYTES];
  if (!entry_path(disk, key, key_bytes, path)) return;
  torus_strbuf_t content = {0};
  torus_strbuf_append_bytes(&content, key, key_bytes);
  torus_strbuf_append_bytes(&content, bytes, size);
  if (!content.failed) write_file(disk, path, &content, key_bytes);
  torus_strbuf_deinit(&content);
  if (disk->writes++ % WRITES_PER_PRUNE == 0) prune(disk);
}
