// Where a function can run when nvcc compiles it; nothing elsewhere.
//
// A role function is run by every thread of a group at once: the one thread of a CPU rank, or the
// threads of a GPU block. Local variables are each thread's own. Members belong to the group: only
// the leader writes them, and Target::sync() comes before the others read what it wrote.
#pragma once

#if defined(__CUDACC__)
#define MEGAMOE_HOST_DEVICE __host__ __device__
#define MEGAMOE_ROLE __device__
#else
#define MEGAMOE_HOST_DEVICE
#define MEGAMOE_ROLE
#endif
