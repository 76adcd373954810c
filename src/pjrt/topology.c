/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Descriptions of devices that need not be there. */
#include "torus/topology.h"

#include <string.h>

#include "pjrt/internal.h"
#include "torus/memory.h"

static bool is_named(const PJRT_NamedValue *value, const char *name) {
  return value->name_size == strlen(name) && memcmp(value->name, name, value->name_size) == 0;
}

static void read_coords(const PJRT_NamedValue *value, torus_topology_device_t *device) {
  size_t capacity = sizeof device->coords / sizeof device->coords[0];
  size_t count = value->value_size < capacity ? value->value_size : capacity;
  memcpy(device->coords, value->int64_array_value, count * sizeof device->coords[0]);
  device->coord_count = (int)count;
}

static void read_attribute(const PJRT_NamedValue *value, torus_topology_device_t *device) {
  if (value->type == PJRT_NamedValue_kInt64List && is_named(value, "coords")) {
    read_coords(value, device);
  } else if (value->type == PJRT_NamedValue_kInt64 && is_named(value, "core_on_chip")) {
    device->core_on_chip = value->int64_value;
  } else if (value->type == PJRT_NamedValue_kInt64 &&
             is_named(value, "device_memory_bytes_limit")) {
    device->memory_limit_bytes = value->int64_value;
  }
}

static torus_status_t read_attributes(const PJRT_Api *api, PJRT_DeviceDescription *description,
                                      torus_topology_device_t *device) {
  if (!TORUS_PJRT_HAS(api, PJRT_DeviceDescription_Attributes)) return TORUS_OK;
  TORUS_PJRT_ARGS(PJRT_DeviceDescription_Attributes, args);
  args.device_description = description;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_DeviceDescription_Attributes(&args)));
  for (size_t i = 0; i < args.num_attributes; i++) read_attribute(&args.attributes[i], device);
  return TORUS_OK;
}

static torus_status_t read_device(const PJRT_Api *api, PJRT_DeviceDescription *description,
                                  torus_topology_device_t *device) {
  TORUS_PJRT_ARGS(PJRT_DeviceDescription_Id, id);
  id.device_description = description;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_DeviceDescription_Id(&id)));
  device->id = id.id;
  TORUS_PJRT_ARGS(PJRT_DeviceDescription_ProcessIndex, process);
  process.device_description = description;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_DeviceDescription_ProcessIndex(&process)));
  device->process_index = process.process_index;
  TORUS_PJRT_ARGS(PJRT_DeviceDescription_Kind, kind);
  kind.device_description = description;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_DeviceDescription_Kind(&kind)));
  char *text;
  TORUS_TRY(torus_pjrt_copy_text(kind.device_kind, kind.device_kind_size, &text));
  device->kind = text;
  return read_attributes(api, description, device);
}

static torus_status_t read_devices(torus_topology_t *topology) {
  const PJRT_Api *api = topology->api;
  TORUS_PJRT_ARGS(PJRT_TopologyDescription_GetDeviceDescriptions, args);
  args.topology = topology->topology;
  TORUS_TRY(torus_pjrt_status(api, api->PJRT_TopologyDescription_GetDeviceDescriptions(&args)));
  void *block;
  TORUS_TRY(torus_try_alloc((args.num_descriptions + 1) * sizeof *topology->devices, &block));
  topology->devices = block;
  topology->device_count = args.num_descriptions;
  for (size_t i = 0; i < args.num_descriptions; i++) {
    TORUS_TRY(read_device(api, args.descriptions[i], &topology->devices[i]));
  }
  return TORUS_OK;
}

static torus_status_t read_version(torus_topology_t *topology) {
  TORUS_PJRT_ARGS(PJRT_TopologyDescription_PlatformVersion, args);
  args.topology = topology->topology;
  TORUS_TRY(torus_pjrt_status(topology->api,
                              topology->api->PJRT_TopologyDescription_PlatformVersion(&args)));
  return torus_pjrt_copy_text(args.platform_version, args.platform_version_size,
                              &topology->platform_version);
}

static torus_status_t topology_init(torus_topology_t *topology, const char *name) {
  TORUS_PJRT_ARGS(PJRT_TopologyDescription_Create, args);
  args.topology_name = name;
  args.topology_name_size = strlen(name);
  TORUS_TRY(torus_status_annotate(
      torus_pjrt_status(topology->api, topology->api->PJRT_TopologyDescription_Create(&args)),
      "topology '%s'", name));
  topology->topology = args.topology;
  TORUS_TRY(read_version(topology));
  return read_devices(topology);
}

static torus_status_t check_entry_points(const PJRT_Api *api, const char *plugin_path) {
  if (TORUS_PJRT_HAS(api, PJRT_TopologyDescription_Create) &&
      TORUS_PJRT_HAS(api, PJRT_TopologyDescription_GetDeviceDescriptions) &&
      TORUS_PJRT_HAS(api, PJRT_TopologyDescription_PlatformVersion) &&
      TORUS_PJRT_HAS(api, PJRT_TopologyDescription_Destroy) && TORUS_PJRT_HAS(api, PJRT_Compile)) {
    return TORUS_OK;
  }
  return torus_status_make(TORUS_STATUS_UNIMPLEMENTED,
                           "PJRT plugin '%s' cannot compile for devices that are not there; "
                           "libtpu can (pip install libtpu)",
                           plugin_path);
}

torus_status_t torus_topology_create(const char *plugin_path, const char *name,
                                     torus_topology_t **out_topology) {
  *out_topology = NULL;
  const PJRT_Api *api;
  TORUS_TRY(torus_pjrt_plugin_load(plugin_path, &api));
  TORUS_TRY(check_entry_points(api, plugin_path));
  void *block;
  TORUS_TRY(torus_try_alloc(sizeof(torus_topology_t), &block));
  torus_topology_t *topology = block;
  topology->api = api;
  torus_status_t status = topology_init(topology, name);
  if (!status) {
    *out_topology = topology;
    topology = NULL;
  }
  torus_topology_destroy(topology);
  return status;
}

void torus_topology_destroy(torus_topology_t *topology) {
  if (!topology) return;
  for (size_t i = 0; i < topology->device_count; i++) torus_free((char *)topology->devices[i].kind);
  torus_free(topology->devices);
  torus_free(topology->platform_version);
  if (topology->topology) {
    TORUS_PJRT_ARGS(PJRT_TopologyDescription_Destroy, args);
    args.topology = topology->topology;
    torus_status_ignore(torus_pjrt_status(
        topology->api, topology->api->PJRT_TopologyDescription_Destroy(&args)));
  }
  torus_free(topology);
}

size_t torus_topology_device_count(const torus_topology_t *topology) {
  return topology->device_count;
}

const torus_topology_device_t *torus_topology_device(const torus_topology_t *topology,
                                                     size_t index) {
  return &topology->devices[index];
}

const char *torus_topology_platform_version(const torus_topology_t *topology) {
  return topology->platform_version;
}
