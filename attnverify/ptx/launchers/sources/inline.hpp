// What stands for CUDA on the host: launches are handed to the machine, streams do nothing.
#pragma once
#include <cstdint>
#include <cstring>
#include <cxxabi.h>
#include <initializer_list>
#include <string>
#include <torch/extension.h>
#include <type_traits>
#include <vector>

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
using half = c10::Half;
using __half = c10::Half;
using nv_bfloat16 = c10::BFloat16;
using __nv_bfloat16 = c10::BFloat16;
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct int2 { int x, y; };
struct int4 { int x, y, z, w; };
struct uint4 { unsigned x, y, z, w; };

namespace nvcuda::wmma {}

typedef void* cudaStream_t;
enum cudaError_t { cudaSuccess = 0 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline cudaError_t cudaPeekAtLastError() { return cudaSuccess; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
template <class F> cudaError_t cudaFuncSetAttribute(F, cudaFuncAttribute, int) { return cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* at, int value, size_t count, cudaStream_t = nullptr) {
    std::memset(at, value, count);
    return cudaSuccess;
}
inline cudaError_t cudaMemset(void* at, int value, size_t count) { return cudaMemsetAsync(at, value, count); }
#define C10_CUDA_CHECK(expression) (expression)
#define C10_CUDA_KERNEL_LAUNCH_CHECK() ((void)0)
#define AT_CUDA_CHECK(expression) (expression)

namespace at {
template <class T> struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };  // PyTorch has it for nvcc alone
}
namespace at::cuda {
struct CUDAStream {
    cudaStream_t stream() const { return nullptr; }
    operator cudaStream_t() const { return nullptr; }
};
inline CUDAStream getCurrentCUDAStream(int = -1) { return {}; }
struct CUDAGuard {
    template <class Device> explicit CUDAGuard(Device) {}
};
using OptionalCUDAGuard = CUDAGuard;
}  // namespace at::cuda
namespace c10::cuda {
using at::cuda::CUDAGuard;
using at::cuda::CUDAStream;
using at::cuda::getCurrentCUDAStream;
using at::cuda::OptionalCUDAGuard;
}  // namespace c10::cuda

namespace machine {
struct Argument {
    const void* at;
    int64_t size;
    int64_t is_pointer;
};
struct Setting {
    dim3 grid, block;
    size_t shared = 0;
};
using Run = int (*)(const char*, const unsigned*, int64_t, const Argument*, int64_t);
using Side = int (*)(const void*);
inline Run run = nullptr;
inline Side side = nullptr;
inline Setting setting;

inline bool on_gpu(const at::Tensor& x) {
    return x.defined() && side(x.storage().unsafeGetStorageImpl());
}
inline bool on_host(const at::Tensor& x) { return x.defined() && !on_gpu(x); }
template <class T> bool on_gpu(const T& x) { return x.is_cpu(); }  // a device
template <class T> bool on_host(const T&) { return false; }

inline void configure(dim3 grid, dim3 block, size_t shared = 0, cudaStream_t = nullptr) {
    setting = Setting{grid, block, shared};
}
template <class T> Argument packed(const T& x) {
    return {&x, (int64_t)sizeof(T), std::is_pointer_v<T>};
}
template <class T> std::string spelled() {
    if constexpr (std::is_same_v<T, c10::Half>) return "__half";
    if constexpr (std::is_same_v<T, c10::BFloat16>) return "__nv_bfloat16";
    int status = 0;
    char* name = abi::__cxa_demangle(typeid(T).name(), nullptr, nullptr, &status);
    std::string found(name);
    free(name);
    return found;
}
template <auto value> std::string spelled() {
    if constexpr (std::is_same_v<decltype(value), const bool> || std::is_same_v<decltype(value), bool>)
        return value ? "true" : "false";
    else
        return std::to_string((long long)value);
}
inline void launch(std::string name, std::initializer_list<std::string> types, std::initializer_list<Argument> given) {
    std::string rest;
    for (const auto& type : types) rest += (rest.empty() ? "" : ", ") + type;
    if (types.size()) name += "<" + rest + ">";
    const unsigned sizes[6] = {setting.grid.x,  setting.grid.y,  setting.grid.z,
                               setting.block.x, setting.block.y, setting.block.z};
    std::vector<Argument> arguments(given);
    if (run(name.c_str(), sizes, (int64_t)setting.shared, arguments.data(), (int64_t)arguments.size()))
        throw std::runtime_error("the launch of " + name + " was stopped");
}
}  // namespace machine
extern "C" void machine_runs(machine::Run run, machine::Side side) {
    machine::run = run;
    machine::side = side;
}

#define __host__
#define __device__
#define __forceinline__ inline
#define is_cuda is_cpu
#define kCUDA kCPU
