// What the host's headers bring along for the device (sys/types.h).
typedef unsigned char u_char;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

// PyTorch's accessors as a kernel has them, laid out as those that the host passes
// (ATen/core/TensorAccessor.h: the pointer, the sizes, the strides).
namespace at {
template <class T> struct DefaultPtrTraits { typedef T* PtrType; };
template <class T> struct RestrictPtrTraits { typedef T* __restrict__ PtrType; };

template <class T, size_t N, class Index> struct TensorAccessor {
    T* data_;
    const Index *sizes_, *strides_;
    __device__ Index size(Index at) const { return sizes_[at]; }
    __device__ Index stride(Index at) const { return strides_[at]; }
    __device__ T* data() const { return data_; }
    __device__ decltype(auto) operator[](Index at) const {
        if constexpr (N == 1)
            return (data_[at * strides_[0]]);
        else
            return TensorAccessor<T, N - 1, Index>{data_ + at * strides_[0], sizes_ + 1, strides_ + 1};
    }
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits, class Index = int64_t>
struct GenericPackedTensorAccessor {
    typename Traits<T>::PtrType data_;
    Index sizes_[N], strides_[N];
    __device__ Index size(Index at) const { return sizes_[at]; }
    __device__ Index stride(Index at) const { return strides_[at]; }
    __device__ T* data() const { return data_; }
    __device__ decltype(auto) operator[](Index at) const {
        return TensorAccessor<T, N, Index>{data_, sizes_, strides_}[at];
    }
};
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor32 = GenericPackedTensorAccessor<T, N, Traits, int32_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor64 = GenericPackedTensorAccessor<T, N, Traits, int64_t>;
template <class T, size_t N, template <class> class Traits = DefaultPtrTraits>
using PackedTensorAccessor = PackedTensorAccessor64<T, N, Traits>;
}  // namespace at
namespace torch {
using namespace at;
}
#line 1 "kernel.cu"
