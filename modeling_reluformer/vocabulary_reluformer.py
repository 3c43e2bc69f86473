"""Resizing vocabularies: one that source and target share, or two."""

from torch import nn


class VocabularyMixin:
    """`resize_token_embeddings` and `resize_decoder_token_embeddings` of both models, as in Marian."""

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """As in Transformers: the shared vocabulary, with output layer and bias; of two vocabularies, the source's."""
        embeddings = super().resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        if self.config.share_encoder_decoder_embeddings:
            self._set_decoder_vocabulary(embeddings.weight.shape[0])
        return embeddings

    def resize_decoder_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        """The target's vocabulary of two, with output layer and bias.

        Raises:
            ValueError: source and target share one vocabulary.
        """
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "resize_decoder_token_embeddings needs share_encoder_decoder_embeddings=False; source and target of this "
                "model share one vocabulary: use resize_token_embeddings."
            )
        decoder, head = self.get_decoder(), self.get_output_embeddings()
        embeddings = self._get_resized_embeddings(
            decoder.embed_tokens, new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        decoder.embed_tokens = embeddings
        size = embeddings.weight.shape[0]
        if head is not None and not self.config.tie_word_embeddings:
            self.set_output_embeddings(self._get_resized_lm_head(head, size, mean_resizing=mean_resizing))
        self._set_decoder_vocabulary(size)
        self.tie_weights()
        return embeddings

    def _resize_token_embeddings(
        self, new_num_tokens: int | None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Embedding:
        if self.config.share_encoder_decoder_embeddings:
            return super()._resize_token_embeddings(new_num_tokens, pad_to_multiple_of, mean_resizing)
        # the output layer, which the library would resize too, belongs to the other vocabulary
        embeddings = self._get_resized_embeddings(
            self.get_input_embeddings(), new_num_tokens, pad_to_multiple_of, mean_resizing
        )
        self.set_input_embeddings(embeddings)
        return embeddings

    def _set_decoder_vocabulary(self, size: int) -> None:
        self.config.decoder_vocab_size = size
        bias = getattr(self, "final_logits_bias", None)
        if bias is not None:
            padded = nn.functional.pad(bias, (0, max(0, size - bias.shape[1])))
            self.final_logits_bias = nn.Buffer(padded[:, :size].clone())
        if (head := self.get_output_embeddings()) is not None:
            head.out_features = size
