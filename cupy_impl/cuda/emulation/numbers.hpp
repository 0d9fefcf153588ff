// Half types and the functions of float32 on a CPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define DEVICE static inline
#define METHOD inline

struct half { unsigned short bits; };
struct bfloat16 { unsigned short bits; };

template <class To, class From> static inline To bits(From x)
{
    static_assert(sizeof(To) == sizeof(From));
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}

DEVICE float widen(float x) { return x; }
DEVICE float widen(bfloat16 x) { return bits<float>((uint32_t)x.bits << 16); }
DEVICE float widen(half x)
{
    const uint32_t sign = (uint32_t)(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
    // moved to the exponent of float, whose bias is 112 larger: exact for subnormals too; infinity and NaN have the largest exponent
    const float y = bits<float>(rest << 13) * 0x1p112f;
    return bits<float>(sign | (rest >= 0x7c00 ? rest << 13 | 0x7f800000 : bits<uint32_t>(y)));
}

template <class T> inline T narrow(float x);
template <> inline float narrow<float>(float x) { return x; }
template <> inline bfloat16 narrow<bfloat16>(float x)
{
    const uint32_t y = bits<uint32_t>(x);
    if (x != x) return {(unsigned short)(y >> 16 | 0x40)};
    return {(unsigned short)((y + 0x7fff + (y >> 16 & 1)) >> 16)};
}
template <> inline half narrow<half>(float x)
{
    const uint32_t y = bits<uint32_t>(x), sign = y >> 16 & 0x8000, rest = y & 0x7fffffff;
    if (rest > 0x7f800000) return {(unsigned short)(sign | 0x7e00)};
    if (rest >= 0x477ff000) return {(unsigned short)(sign | 0x7c00)};
    if (rest < 0x38800000) {  // subnormal: the addition rounds at the last bit of the format
        return {(unsigned short)(sign | (bits<uint32_t>(bits<float>(rest) + 0.5f) - bits<uint32_t>(0.5f)))};
    }
    return {(unsigned short)(sign | ((rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13))};
}

template <class T> inline unsigned pack(T first, T second) { return first.bits | (unsigned)second.bits << 16; }
template <class T> inline unsigned rounded_pair(float first, float second) { return pack(narrow<T>(first), narrow<T>(second)); }
template <> inline unsigned rounded_pair<float>(float, float) { return 0; }
template <class T> static inline float unpacked(unsigned pair, int which) { return widen(T{(unsigned short)(pair >> 16 * which)}); }

DEVICE float natural_logarithm(float x) { return logf(x); }
DEVICE float reciprocal(float x) { return 1 / x; }
DEVICE float larger(float x, float y) { return fmaxf(x, y); }
DEVICE float smaller(float x, float y) { return fminf(x, y); }
DEVICE float infinity() { return __builtin_huge_valf(); }
template <class T> inline float exponential(float x) { return expf(x); }
template <class T> inline float power_of_two(float x) { return exp2f(x); }
