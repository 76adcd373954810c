/* Copyright The Torus Authors. Licensed under the Apache License, Version 2.0. */
/* Topologies. TORUS_TEST_PLUGIN is a plugin that knows none; where TORUS_LIBTPU_PATH names libtpu,
 * programs are compiled too. */
#include "test.h"

#include "torus/topology.h"

static const char *cpu_plugin, *libtpu;

TEST(plugin_without_topologies_says_so) {
  torus_topology_t *topology;
  torus_status_t status = torus_topology_create(cpu_plugin, "v6e:2x2", &topology);
  ASSERT_TRUE(status != TORUS_OK && topology == NULL);
  torus_status_free(status);
  ASSERT_STATUS(torus_topology_create("/nowhere/libtpu.so", "v6e:2x2", &topology),
                TORUS_STATUS_NOT_FOUND, "/nowhere/libtpu.so");
  torus_topology_destroy(NULL);
  torus_binary_destroy(NULL);
}

static const char add_text[] =
    "func.func public @main(%a: tensor<8x128xf32>) -> tensor<8x128xf32> {\n"
    "  %0 = stablehlo.add %a, %a : tensor<8x128xf32>\n"
    "  return %0 : tensor<8x128xf32>\n"
    "}\n";

static torus_status_t compile(torus_topology_t *topology, int partitions, const char *overrides,
                              torus_binary_t **out_binary) {
  torus_binary_options_t options = {.replica_count = 1, .partition_count = partitions, .overrides = overrides};
  return torus_binary_compile(topology, add_text, strlen(add_text), &options, out_binary);
}

static void count_costs(void *context, const char *name, size_t name_bytes, double value) {
  if (name_bytes == 5 && memcmp(name, "flops", 5) == 0) *(double *)context = value;
}

static void look_at(torus_binary_t *binary) {
  torus_binary_memory_t memory;
  ASSERT_OK(torus_binary_memory(binary, &memory));
  ASSERT_EQ(memory.argument_bytes, 4096);
  double flops = -1;
  ASSERT_OK(torus_binary_costs(binary, count_costs, &flops));
  ASSERT_FLOAT_EQ(flops, 1024);
  char *bytes;
  size_t size;
  ASSERT_OK(torus_binary_serialize(binary, &bytes, &size));
  torus_free(bytes);
  ASSERT_TRUE(size > 0);
  ASSERT_OK(torus_binary_optimized(binary, &bytes, &size));
  torus_free(bytes);
  ASSERT_TRUE(size > 0);
}

TEST(libtpu_compiles_without_a_tpu) {
  if (!libtpu) return;
  torus_topology_t *topology;
  torus_binary_t *binary;
  ASSERT_OK(torus_topology_create(libtpu, "v6e:2x2", &topology));
  ASSERT_EQ(torus_topology_device_count(topology), 4);
  const torus_topology_device_t *device = torus_topology_device(topology, 3);
  ASSERT_STR_EQ(device->kind, "TPU v6 lite");
  ASSERT_EQ(device->coords[0] + device->coords[1], 2);
  ASSERT_STATUS(compile(topology, 5, "", &binary), TORUS_STATUS_INVALID_ARGUMENT, "4 devices");
  ASSERT_STATUS(compile(topology, 0, "", &binary), TORUS_STATUS_INVALID_ARGUMENT, "4 devices");
  ASSERT_STATUS(compile(topology, 1, "a", &binary), TORUS_STATUS_INVALID_ARGUMENT, "name=value");
  ASSERT_OK(compile(topology, 1, "", &binary));
  look_at(binary);
  torus_binary_destroy(binary);
  torus_topology_destroy(topology);
}

int main(int argc, char **argv) {
  cpu_plugin = getenv("TORUS_TEST_PLUGIN");
  libtpu = getenv("TORUS_LIBTPU_PATH");
  if (!cpu_plugin || !*cpu_plugin) {
    fprintf(stderr, "skipped: TORUS_TEST_PLUGIN does not name a plugin\n");
    return TEST_SKIPPED;
  }
  static const test_case_t tests[] = {
      TEST_ENTRY(plugin_without_topologies_says_so),
      TEST_ENTRY(libtpu_compiles_without_a_tpu),
  };
  return test_run_all(tests, sizeof tests / sizeof tests[0], argc, argv);
}
