"""Twins of the modules in `failing`, whose forward runs: the same text, with one line of each as it was meant."""

from pathlib import Path

from tests.diagnostics.modules import failing

MEANT = {
    "product": ("scores = q @ k", "scores = q @ k.transpose(-2, -1)"),
    "hidden_layers": ("nn.Linear(4 * D, D)", "nn.Linear(3 * D, D)"),
    "classifier": ("return self.head(x)", "return self.head(x.flatten(1))"),
    "channels": ("self.second = nn.Conv2d(3, C, 3)", "self.second = nn.Conv2d(C, C, 3)"),
    "channels_last": ("self.patches(picture)", "self.patches(picture.permute(0, 3, 1, 2))"),
    "class_token": ("[self.cls, x]", "[self.cls.expand(x.size(0), -1, -1), x]"),
    "axis_join": ("self.narrow(x)], dim=1)", "self.narrow(x)], dim=-1)"),
    "sequence_stack": ("torch.stack([x, y], dim=1)", "torch.cat([x, y], dim=1)"),
    "positions": ("x + self.table", "x + self.table[:, : x.size(1)]"),
    "sample_weight": ("x * weight", "x * weight[:, None, None]"),
    "head_merge": ("heads.view(B, T, D)", "heads.transpose(1, 2).reshape(B, T, D)"),
    "flat_picture": ("x.view(x.size(0), 4 * 8 * 8)", "x.view(x.size(0), -1)"),
    "tokens": ("nn.Embedding(V // 2, D)", "nn.Embedding(V, D)"),
    "padding_mask": ("attn_mask=keep", "attn_mask=keep[:, None, None, :]"),
    "precision": ("return self.proj(x)  # here", "return self.proj(x.float())"),
    "batch_first": ("nn.MultiheadAttention(D, h)", "nn.MultiheadAttention(D, h, batch_first=True)"),
    "loss": ("F.cross_entropy(scores, target)", "F.cross_entropy(scores.transpose(1, 2), target)"),
    "binary": ("(self.head(x), target)", "(self.head(x).squeeze(-1), target.float())"),
    "letters": ('"bhqd,bhdk->bhqk"', '"bhqd,bhkd->bhqk"'),
    "norm": ("nn.LayerNorm(D)", "nn.LayerNorm(2 * D)"),
    "batch_norm": ("return self.norm(x)", "return self.norm(x.transpose(1, 2))"),
    "last": ("x[:, n]", "x[:, n - 1]"),
    "pair": ("states = self.rnn(x)", "states = self.rnn(x)[0]"),
    "attribute_typo": ("self.project(x)", "self.projection(x)"),
    "return_value": ("        x + self.proj(x)  # here", "        return x + self.proj(x)"),
    "missing": ("self.block(x)", "self.block(x, mask=None)"),
    "device_choice": ('device="meta"', "device=x.device"),
}
"""By the name of a factory, the text that makes its module fail, and the one that was meant."""

text = Path(failing.__file__).read_text(encoding="utf-8")
for wrong, right in MEANT.values():
    assert text.count(wrong) == 1, wrong
    text = text.replace(wrong, right)
exec(compile(text, __file__, "exec"), globals())
