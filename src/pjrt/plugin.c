/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Loading of plugins. A plugin stays loaded until the process ends: it starts threads of its own
 * and registers exit handlers, so that unloading one is not safe. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "pjrt/internal.h"
#include "torus/memory.h"

#define REMEDY "install a PJRT plugin (for the CPU: pip install xla-cpu-pjrt) or correct the path"

/* Entry points without which nothing here works. */
#define REQUIRED_ENTRY_POINTS(X)                                                                   \
  X(PJRT_Error_Destroy)                                                                            \
  X(PJRT_Error_Message)                                                                            \
  X(PJRT_Error_GetCode)                                                                            \
  X(PJRT_Event_Destroy)                                                                            \
  X(PJRT_Event_IsReady)                                                                            \
  X(PJRT_Event_Await)                                                                              \
  X(PJRT_Client_Create)                                                                            \
  X(PJRT_Client_Destroy)                                                                           \
  X(PJRT_Client_PlatformName)                                                                      \
  X(PJRT_Client_PlatformVersion)                                                                   \
  X(PJRT_Client_AddressableDevices)                                                                \
  X(PJRT_Client_Compile)                                                                           \
  X(PJRT_Client_BufferFromHostBuffer)                                                              \
  X(PJRT_Executable_Destroy)                                                                       \
  X(PJRT_Executable_NumOutputs)                                                                    \
  X(PJRT_LoadedExecutable_Destroy)                                                                 \
  X(PJRT_LoadedExecutable_GetExecutable)                                                           \
  X(PJRT_LoadedExecutable_Execute)                                                                 \
  X(PJRT_Buffer_Destroy)                                                                           \
  X(PJRT_Buffer_ElementType)                                                                       \
  X(PJRT_Buffer_Dimensions)                                                                        \
  X(PJRT_Buffer_ToHostBuffer)                                                                      \
  X(PJRT_Buffer_ReadyEvent)

/* Plugins initialised so far. A fixed table: it lives as long as the process, and nobody has more
 * than a few plugins. */
static struct {
  pthread_mutex_t lock; /* guards the rest, and the initialising itself */
  const PJRT_Api *apis[16];
  size_t count;
} plugins = {.lock = PTHREAD_MUTEX_INITIALIZER};

torus_status_t torus_pjrt_status(const PJRT_Api *api, PJRT_Error *error) {
  if (!error) return TORUS_OK;
  TORUS_PJRT_ARGS(PJRT_Error_Message, message);
  message.error = error;
  api->PJRT_Error_Message(&message);
  TORUS_PJRT_ARGS(PJRT_Error_GetCode, code);
  code.error = error;
  torus_status_t code_status = torus_pjrt_status(api, api->PJRT_Error_GetCode(&code));
  torus_status_code_t number =
      code_status ? TORUS_STATUS_UNKNOWN : (torus_status_code_t)code.code;
  torus_status_ignore(code_status);
  torus_status_t status = torus_status_make(
      number, "%.*s", (int)(message.message_size < 65536 ? message.message_size : 65536),
      message.message);
  TORUS_PJRT_ARGS(PJRT_Error_Destroy, destroy);
  destroy.error = error;
  api->PJRT_Error_Destroy(&destroy);
  return status;
}

torus_status_t torus_pjrt_copy_text(const char *text, size_t size_bytes, char **out_text) {
  void *block;
  TORUS_TRY(torus_try_alloc(size_bytes + 1, &block));
  if (size_bytes) memcpy(block, text, size_bytes);
  *out_text = block;
  return TORUS_OK;
}

torus_status_t torus_pjrt_event_await(const PJRT_Api *api, PJRT_Event *event) {
  if (!event) return TORUS_OK;
  TORUS_PJRT_ARGS(PJRT_Event_Await, await);
  await.event = event;
  torus_status_t status = torus_pjrt_status(api, api->PJRT_Event_Await(&await));
  TORUS_PJRT_ARGS(PJRT_Event_Destroy, destroy);
  destroy.event = event;
  torus_status_ignore(torus_pjrt_status(api, api->PJRT_Event_Destroy(&destroy)));
  return status;
}

/* A bare name would make the loader search folders that nobody named. */
static torus_status_t check_path(const char *path) {
  if (!path || path[0] != '/') {
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                             "plugin path '%s' is not absolute; give the full path of the plugin",
                             path ? path : "");
  }
  if (access(path, R_OK) == 0) return TORUS_OK;
  int error = errno;
  if (error == EACCES) {
    return torus_status_make(TORUS_STATUS_PERMISSION_DENIED,
                             "PJRT plugin '%s' is not readable; check the file's permissions",
                             path);
  }
  return torus_status_make(TORUS_STATUS_NOT_FOUND, "PJRT plugin '%s': %s; " REMEDY, path,
                           strerror(error));
}

static torus_status_t open_library(const char *path, const PJRT_Api **out_api) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *reason = dlerror();
    return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                             "'%s' cannot be loaded as a PJRT plugin (%s); " REMEDY, path,
                             reason ? reason : "no reason given");
  }
  /* A cast between object and function pointers is what POSIX, not C, allows. */
  __extension__ const PJRT_Api *(*get_api)(void) =
      (const PJRT_Api *(*)(void))dlsym(library, "GetPjrtApi");
  if (get_api) *out_api = get_api();
  if (*out_api) return TORUS_OK;
  return torus_status_make(
      TORUS_STATUS_INVALID_ARGUMENT, "'%s' is a shared library but not a PJRT plugin: %s; " REMEDY,
      path, get_api ? "GetPjrtApi returned nothing" : "it has no function GetPjrtApi");
}

static torus_status_t check_version(const char *path, const PJRT_Api *api) {
  int major = api->pjrt_api_version.major_version, minor = api->pjrt_api_version.minor_version;
  if (major != PJRT_API_MAJOR) {
    return torus_status_make(
        TORUS_STATUS_FAILED_PRECONDITION,
        "PJRT plugin '%s' has API version %d.%d, but this build needs major version %d; install a "
        "plugin of that version or rebuild against the plugin's pjrt_c_api.h",
        path, major, minor, PJRT_API_MAJOR);
  }
#define CHECK_ENTRY_POINT(name)                                                                    \
  if (!TORUS_PJRT_HAS(api, name)) {                                                                \
    return torus_status_make(TORUS_STATUS_FAILED_PRECONDITION,                                     \
                             "PJRT plugin '%s' (API version %d.%d) lacks " #name                   \
                             "; install a newer plugin",                                           \
                             path, major, minor);                                                  \
  }
  REQUIRED_ENTRY_POINTS(CHECK_ENTRY_POINT)
#undef CHECK_ENTRY_POINT
  return TORUS_OK;
}

static bool is_initialised(const PJRT_Api *api) {
  for (size_t i = 0; i < plugins.count; i++) {
    if (plugins.apis[i] == api) return true;
  }
  return false;
}

/* The lock is held. */
static torus_status_t initialise(const char *path, const PJRT_Api *api) {
  if (is_initialised(api)) return TORUS_OK;
  size_t capacity = sizeof plugins.apis / sizeof plugins.apis[0];
  if (plugins.count == capacity) {
    return torus_status_make(TORUS_STATUS_RESOURCE_EXHAUSTED,
                             "PJRT plugin '%s': this process has loaded %zu plugins already", path,
                             capacity);
  }
  if (TORUS_PJRT_HAS(api, PJRT_Plugin_Initialize)) {
    TORUS_PJRT_ARGS(PJRT_Plugin_Initialize, args);
    TORUS_TRY(torus_status_annotate(torus_pjrt_status(api, api->PJRT_Plugin_Initialize(&args)),
                                    "PJRT plugin '%s' does not initialise", path));
  }
  plugins.apis[plugins.count++] = api;
  return TORUS_OK;
}

torus_status_t torus_pjrt_plugin_load(const char *path, const PJRT_Api **out_api) {
  *out_api = NULL;
  TORUS_TRY(check_path(path));
  const PJRT_Api *api = NULL;
  TORUS_TRY(open_library(path, &api));
  TORUS_TRY(check_version(path, api));
  pthread_mutex_lock(&plugins.lock);
  torus_status_t status = initialise(path, api);
  pthread_mutex_unlock(&plugins.lock);
  if (!status) *out_api = api;
  return status;
}
