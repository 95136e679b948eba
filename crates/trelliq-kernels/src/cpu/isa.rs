//! Instruction sets that kernels are compiled for.

/// An instruction set of the CPU kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// One weight at a time: the oracle that the others are tested against.
    Scalar,
    /// What the build's baseline has: SSE2 on x86-64, NEON on aarch64.
    Baseline,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL.
    Avx512,
    /// The same with VNNI and VBMI2: Intel's servers from Ice Lake on, AMD's CPUs from Zen 4 on.
    Avx512Vnni,
}

impl Isa {
    pub const ALL: [Isa; 5] = [Isa::Scalar, Isa::Baseline, Isa::Avx2, Isa::Avx512, Isa::Avx512Vnni];

    /// What settings and tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Baseline => "baseline",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Avx512Vnni => "avx512-vnni",
        }
    }

    /// Whether this machine can run it.
    pub fn available(self) -> bool {
        match self {
            Isa::Scalar | Isa::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => {
                Isa::Avx512.available()
                    && is_x86_feature_detected!("avx512vnni")
                    && is_x86_feature_detected!("avx512vbmi2")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Vnni => false,
        }
    }

    /// Whether pairs of 16-bit products are one instruction, so that integer kernels win. On SSE2
    /// the compiler's code for them reaches half of what f32 does.
    pub(crate) fn has_integer_products(self) -> bool {
        match self {
            Isa::Scalar => false,
            Isa::Baseline => cfg!(target_arch = "aarch64"),
            Isa::Avx2 | Isa::Avx512 | Isa::Avx512Vnni => true,
        }
    }

    /// `asked`, or the best available one when that is not asked for or not there.
    pub fn chosen(asked: Option<Isa>) -> Isa {
        asked.filter(|isa| isa.available()).unwrap_or_else(Isa::best)
    }

    /// The best that this machine can run.
    pub fn best() -> Isa {
        Isa::ALL.into_iter().rev().find(|isa| isa.available()).unwrap_or(Isa::Baseline)
    }
}
