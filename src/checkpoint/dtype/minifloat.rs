//! Floats of eight and four bits, which stand for something only beside a scale: see the OCP specifications "8-bit Floating Point"
//! and "Microscaling Formats".

use std::array::from_fn;
use std::sync::LazyLock;

/// Four bits of exponent (bias 7), three of mantissa, no infinity; all bits but the sign are one in a NaN.
pub static E4M3: LazyLock<[f32; 256]> =
    LazyLock::new(|| from_fn(|code| if code & 0x7f == 0x7f { f32::NAN } else { value(code as u32, 4, 3) }));

/// Five bits of exponent (bias 15), two of mantissa, infinities and NaNs as in IEEE 754.
pub static E5M2: LazyLock<[f32; 256]> = LazyLock::new(|| {
    from_fn(|code| match code & 0x7f {
        0x7c => value(code as u32 & 0x80, 5, 2).signum() * f32::INFINITY,
        0x7d.. => f32::NAN,
        _ => value(code as u32, 5, 2),
    })
});

/// The exponent (bias 127) of a power of two; 255 is a NaN.
pub static E8M0: LazyLock<[f32; 256]> =
    LazyLock::new(|| from_fn(|code| if code == 255 { f32::NAN } else { 2f64.powi(code as i32 - 127) as f32 }));

/// Two bits of exponent (bias 1), one of mantissa, every code a number.
pub static E2M1: LazyLock<[f32; 16]> = LazyLock::new(|| from_fn(|code| value(code as u32, 2, 1)));

/// A number of a sign, some bits of exponent and some of mantissa, the smallest exponent being that of zero and
/// subnormal numbers.
fn value(code: u32, exponent_bits: u32, mantissa_bits: u32) -> f32 {
    let bias = (1 << (exponent_bits - 1)) - 1;
    let exponent = (code >> mantissa_bits & ((1 << exponent_bits) - 1)) as i32;
    let mantissa = f64::from(code & ((1 << mantissa_bits) - 1)) / f64::from(1u32 << mantissa_bits);
    let sign = if code >> (exponent_bits + mantissa_bits) & 1 == 1 { -1.0 } else { 1.0 };
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(1 - bias),
        e => (1.0 + mantissa) * 2f64.powi(e - bias),
    };
    (sign * magnitude) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_the_specifications() {
        // OCP 8-bit Floating Point, table 2: largest, smallest normal, largest and smallest subnormal.
        assert_eq!([0x7e, 0x08, 0x07, 0x01].map(|code| E4M3[code]), [448.0, 0.015625, 0.875 / 64.0, 1.0 / 512.0]);
        assert_eq!(
            [0x7b, 0x04, 0x03, 0x01].map(|code| E5M2[code]),
            [57344.0, 2f32.powi(-14), 0.75 * 2f32.powi(-14), 2f32.powi(-16)]
        );
        assert!(E4M3[0x7f].is_nan() && E4M3[0xff].is_nan());
        assert_eq!(E5M2.iter().filter(|value| value.is_nan()).count(), 6);
        assert_eq!((E5M2[0x7c], E5M2[0xfc]), (f32::INFINITY, f32::NEG_INFINITY));
        assert_eq!(E4M3.iter().chain(E5M2.iter()).filter(|value| value.is_infinite()).count(), 2);
        assert!(E4M3[0x80] == 0.0 && E4M3[0x80].is_sign_negative());
        assert_eq!((E8M0[127], E8M0[0], E8M0[254]), (1.0, 2f32.powi(-127), 2f32.powi(127)));
        assert!(E8M0[255].is_nan());
        assert_eq!(E2M1[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(E2M1[9..], [-0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]);
    }
}
