// Copyright The Torus Authors. Licensed under the Apache License, Version 2.0.
// Device memory as libtorch sees it: opaque addresses that stand for storages of the engine.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <optional>

#include "torus/engine.h"

namespace torus {

// The storage behind |impl|, borrowed. Also finds it when another owner holds the address, as
// after a round trip through DLPack. Throws for memory of another device.
torus_storage_t *storage_of(const c10::StorageImpl &impl);

// The live storage whose address range contains |address|, borrowed; nullptr: none.
torus_storage_t *storage_at(const void *address);
std::optional<int> device_of_pointer(const void *address);

// Takes over the reference. The address is new and unique; it is null for a storage of no bytes,
// as PyTorch's other devices have it.
c10::DataPtr wrap_storage(torus_storage_t *storage);

// Keeps the leading bytes. The address stays unless the storage is emptied.
void resize_storage(c10::StorageImpl &impl, size_t size_bytes);

void register_allocator();

} // namespace torus
