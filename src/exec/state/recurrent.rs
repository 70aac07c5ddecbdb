//! What convolutions and scans keep: the inputs that a convolution still needs, and a scan's state after all tokens.

use super::{MixerState, Part, StateError};
use crate::model::plan::{CausalConv, GatedDelta, Mamba2, ShortConv};
use crate::ops::delta::DeltaSpec;
use crate::ops::{Float, Matrix, mamba2::ScanSpec};

/// The state of a short convolution, of Mamba-2 or of a gated delta rule.
///
/// It can't go back: a scan's state doesn't tell what it was before its last token, and a convolution's inputs of that
/// time are gone.
#[derive(Debug, Clone)]
pub struct RecurrentState<F> {
    /// Tokens seen.
    len: usize,
    /// Inputs that a convolution needs of the tokens so far.
    needed: usize,
    /// The last inputs of the convolutions, side by side: `[min(len, needed), channels]`.
    conv: Matrix<F>,
    /// `[heads * state_size, head_dim]`, or `[value heads * head_k_dim, head_v_dim]`.
    scan: Option<Matrix<F>>,
}

impl<F: Float> RecurrentState<F> {
    pub fn of_short_conv(conv: &ShortConv) -> Self {
        Self::new([&conv.conv], None)
    }

    pub fn of_mamba2(mamba: &Mamba2) -> Self {
        let ScanSpec { num_heads, head_dim, state_size, .. } = mamba.spec();
        Self::new([&mamba.conv], Some((num_heads * state_size, head_dim)))
    }

    pub fn of_delta(delta: &GatedDelta) -> Self {
        let DeltaSpec { num_v_heads, head_k_dim, head_v_dim, .. } = delta.spec();
        Self::new(&delta.conv, Some((num_v_heads * head_k_dim, head_v_dim)))
    }

    fn new<'a>(convs: impl IntoIterator<Item = &'a CausalConv>, scan: Option<(usize, usize)>) -> Self {
        let (mut channels, mut kernel) = (0, 1);
        for (rows, cols) in convs.into_iter().map(|conv| conv.weight.rows_and_cols()) {
            channels += rows;
            kernel = kernel.max(cols);
        }
        let scan = scan.map(|(rows, cols)| Matrix::filled(rows, cols, F::ZERO));
        Self { len: 0, needed: kernel - 1, conv: Matrix::filled(0, channels, F::ZERO), scan }
    }

    /// Takes the convolutions' inputs of the next tokens, `[tokens, channels]`, and gives them back with those before
    /// them: `[needed + tokens, channels]`, zeros standing for what was before the first token.
    pub fn append(&mut self, inputs: &Matrix<F>) -> Matrix<F> {
        let mut all = Matrix::filled(self.needed - self.conv.rows(), inputs.cols(), F::ZERO);
        all.extend_rows(self.conv.data());
        all.extend_rows(inputs.data());
        self.len += inputs.rows();
        self.conv = all.slice_rows(all.rows() - self.len.min(self.needed)..all.rows());
        all
    }

    /// The scan's state, which starts with zeros; empty where there is no scan.
    pub fn scan_mut(&mut self) -> &mut [F] {
        self.scan.as_mut().map_or(&mut [], |scan| scan.data_mut())
    }
}

impl<F: Float> MixerState<F> for RecurrentState<F> {
    fn can_trim(&self, len: usize) -> Result<(), StateError> {
        match len {
            0 => Ok(()),
            len if len == self.len => Ok(()),
            wanted => Err(StateError::Recurrent { len: self.len, wanted }),
        }
    }

    fn trim(&mut self, len: usize) {
        if len == 0 {
            self.len = 0;
            self.conv = self.conv.slice_rows(0..0);
            self.scan_mut().fill(F::ZERO);
        }
    }

    fn parts(&self) -> Vec<Part<'_, F>> {
        let conv = Part { name: "conv", first: Some(self.len - self.conv.rows()), rows: &self.conv };
        let scan = self.scan.as_ref().map(|rows| Part { name: "scan", first: None, rows });
        std::iter::once(conv).chain(scan).collect()
    }

    fn restore(&mut self, parts: Vec<(String, Option<usize>, Matrix<F>)>) -> Result<(), String> {
        let mut parts = parts.into_iter();
        let channels = self.conv.cols();
        let (len, conv) = match parts.next() {
            Some((name, Some(first), rows)) if name == "conv" && rows.cols() == channels => (first + rows.rows(), rows),
            _ => return Err(format!("expected the inputs of a convolution over {channels} channels")),
        };
        if conv.rows() != len.min(self.needed) {
            let (needed, found) = (len.min(self.needed), conv.rows());
            return Err(format!("expected the last {needed} inputs of the convolution, found {found}"));
        }
        if let Some(scan) = &mut self.scan {
            let (rows, cols) = (scan.rows(), scan.cols());
            match parts.next() {
                Some((name, None, found)) if name == "scan" && (found.rows(), found.cols()) == (rows, cols) => {
                    *scan = found;
                }
                _ => return Err(format!("expected the state of a scan, {rows} x {cols}")),
            }
        }
        let rest = parts.count();
        if rest > 0 {
            return Err(format!("found {rest} parts more than expected"));
        }
        self.len = len;
        self.conv = conv;
        Ok(())
    }
}
