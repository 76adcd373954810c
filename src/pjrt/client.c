/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Clients and the figures of their devices. */
#include <stdlib.h>
#include <string.h>

#include "pjrt/internal.h"
#include "torus/memory.h"

torus_status_t torus_pjrt_check_device(const torus_client_t *client, int device) {
  if (device >= 0 && device < client->device_count) return TORUS_OK;
  return torus_status_make(TORUS_STATUS_INVALID_ARGUMENT,
                           "device %d does not exist: the %s client has devices 0 to %d", device,
                           client->platform, client->device_count - 1);
}

static torus_status_t create_pjrt_client(torus_client_t *client,
                                         const torus_client_options_t *options) {
  const char name[] = "cpu_device_count";
  PJRT_NamedValue device_count = {
      .struct_size = PJRT_NamedValue_STRUCT_SIZE,
      .name = name,
      .name_size = sizeof name - 1,
      .type = PJRT_NamedValue_kInt64,
      .int64_value = options->cpu_device_count,
      .value_size = 1,
  };
  TORUS_PJRT_ARGS(PJRT_Client_Create, args);
  if (options->is_cpu && options->cpu_device_count > 1) {
    args.create_options = &device_count;
    args.num_options = 1;
  }
  TORUS_TRY(torus_status_annotate(
      torus_pjrt_status(client->api, client->api->PJRT_Client_Create(&args)),
      "PJRT plugin '%s' cannot create a client", options->plugin_path));
  client->client = args.client;
  return TORUS_OK;
}

static torus_status_t read_platform(torus_client_t *client) {
  const PJRT_Api *api = client->api;
  TORUS_PJRT_ARGS(PJRT_Client_PlatformName, name);
  name.client = client->client;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_Client_PlatformName(&name)));
  TORUS_TRY(torus_pjrt_copy_text(name.platform_name, name.platform_name_size, &client->platform));
  client->is_cpu = strcmp(client->platform, "cpu") == 0;
  TORUS_PJRT_ARGS(PJRT_Client_PlatformVersion, version);
  version.client = client->client;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_Client_PlatformVersion(&version)));
  return torus_pjrt_copy_text(version.platform_version, version.platform_version_size,
                   &client->platform_version);
}

/* The kind is a nicety: a plugin that does not tell it gets the platform's name. */
static torus_status_t read_device_kind(const torus_client_t *client, PJRT_Device *device,
                                       char **out_kind) {
  const PJRT_Api *api = client->api;
  const char *kind = client->platform;
  size_t kind_bytes = strlen(kind);
  if (TORUS_PJRT_HAS(api, PJRT_Device_GetDescription) &&
      TORUS_PJRT_HAS(api, PJRT_DeviceDescription_Kind)) {
    TORUS_PJRT_ARGS(PJRT_Device_GetDescription, description);
    description.device = device;
    TORUS_TRY(torus_pjrt_status(api, api->PJRT_Device_GetDescription(&description)));
    TORUS_PJRT_ARGS(PJRT_DeviceDescription_Kind, args);
    args.device_description = description.device_description;
    TORUS_TRY(torus_pjrt_status(api, api->PJRT_DeviceDescription_Kind(&args)));
    kind = args.device_kind;
    kind_bytes = args.device_kind_size;
  }
  return torus_pjrt_copy_text(kind, kind_bytes, out_kind);
}

static torus_status_t read_devices(torus_client_t *client,
                                   const torus_client_options_t *options) {
  TORUS_PJRT_ARGS(PJRT_Client_AddressableDevices, args);
  args.client = client->client;
  TORUS_TRY(torus_pjrt_status(client->api, client->api->PJRT_Client_AddressableDevices(&args)));
  if (args.num_addressable_devices == 0) {
    return torus_status_make(TORUS_STATUS_UNAVAILABLE,
                             "PJRT plugin '%s' (platform %s) has no device on this machine",
                             client->plugin_path, client->platform);
  }
  void *kinds;
  TORUS_TRY(torus_try_alloc(args.num_addressable_devices * sizeof(char *), &kinds));
  client->device_kinds = kinds;
  client->devices = args.addressable_devices;
  client->device_count = (int)args.num_addressable_devices;
  if (options->is_cpu && options->cpu_device_count > 0 &&
      options->cpu_device_count < client->device_count) {
    client->device_count = options->cpu_device_count; /* unasked, the plugin makes several */
  }
  for (int i = 0; i < client->device_count; i++) {
    TORUS_TRY(read_device_kind(client, client->devices[i], &client->device_kinds[i]));
  }
  return TORUS_OK;
}

static torus_status_t client_init(torus_client_t *client, const torus_client_options_t *options) {
  TORUS_TRY(torus_pjrt_copy_text(options->plugin_path, strlen(options->plugin_path), &client->plugin_path));
  TORUS_TRY(create_pjrt_client(client, options));
  TORUS_TRY(read_platform(client));
  return read_devices(client, options);
}

/* XLA's CPU plugin logs how many devices it makes and which partitioner it uses, each time. It asks
 * for the level once, when it is loaded; whoever has set one keeps it. */
static torus_status_t load_quietly(const char *path, const PJRT_Api **out_api) {
  static const char variable[] = "TF_CPP_MIN_LOG_LEVEL";
  bool is_set = getenv(variable) != NULL;
  if (!is_set) setenv(variable, "2", 0);
  torus_status_t status = torus_pjrt_plugin_load(path, out_api);
  if (!is_set) unsetenv(variable);
  return status;
}

torus_status_t torus_client_create(const torus_client_options_t *options,
                                   torus_client_t **out_client) {
  *out_client = NULL;
  const PJRT_Api *api;
  TORUS_TRY(load_quietly(options->plugin_path, &api));
  void *block;
  TORUS_TRY(torus_try_alloc(sizeof(torus_client_t), &block));
  torus_client_t *client = block;
  client->api = api;
  torus_status_t status = client_init(client, options);
  if (!status) {
    *out_client = client;
    client = NULL;
  }
  torus_client_destroy(client);
  return status;
}

void torus_client_destroy(torus_client_t *client) {
  if (!client) return;
  for (int i = 0; i < client->device_count; i++) torus_free(client->device_kinds[i]);
  torus_free(client->device_kinds);
  torus_free(client->platform_version);
  torus_free(client->platform);
  torus_free(client->plugin_path);
  if (client->client) {
    TORUS_PJRT_ARGS(PJRT_Client_Destroy, args);
    args.client = client->client;
    torus_status_ignore(torus_pjrt_status(client->api, client->api->PJRT_Client_Destroy(&args)));
  }
  torus_free(client);
}

int torus_client_device_count(const torus_client_t *client) { return client->device_count; }

const char *torus_client_platform(const torus_client_t *client) { return client->platform; }

const char *torus_client_platform_version(const torus_client_t *client) {
  return client->platform_version;
}

const char *torus_client_plugin_path(const torus_client_t *client) { return client->plugin_path; }

const char *torus_client_device_kind(const torus_client_t *client, int device) {
  return device >= 0 && device < client->device_count ? client->device_kinds[device] : "";
}

void torus_client_api_version(const torus_client_t *client, int *out_major, int *out_minor) {
  *out_major = client->api->pjrt_api_version.major_version;
  *out_minor = client->api->pjrt_api_version.minor_version;
}

bool torus_client_memory_stats(const torus_client_t *client, int device, int64_t *out_in_use,
                               int64_t *out_limit) {
  *out_in_use = 0;
  *out_limit = 0;
  if (device < 0 || device >= client->device_count) return false;
  if (!TORUS_PJRT_HAS(client->api, PJRT_Device_MemoryStats)) return false;
  TORUS_PJRT_ARGS(PJRT_Device_MemoryStats, args);
  args.device = client->devices[device];
  torus_status_t status =
      torus_pjrt_status(client->api, client->api->PJRT_Device_MemoryStats(&args));
  bool known = !status;
  torus_status_ignore(status);
  if (!known) return false;
  *out_in_use = args.bytes_in_use;
  *out_limit = args.bytes_limit_is_set ? args.bytes_limit : 0;
  return true;
}
