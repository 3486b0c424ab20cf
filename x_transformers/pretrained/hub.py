"""Models on a hub:  class Mine(HubMixin, TransformerWrapper), and then `push_to_hub` and `from_pretrained`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from x_transformers.core.files import import_optional
from x_transformers.pretrained.loading import load
from x_transformers.pretrained.saving import save

hub = import_optional('huggingface_hub', '`HubMixin`', 'hub')


class HubMixin(hub.PyTorchModelHubMixin):
    """Mixin of `huggingface_hub` with `pretrained.save` and `pretrained.load`. It must be the first base class.

    `push_to_hub(repo_id)` and `save_pretrained(path)` write the format of this library, or with `format='hf'` that of
    `transformers`; `from_pretrained` reads both, from a folder or a repository.
    """

    def save_pretrained(self, save_directory: Any, *, format: str | None = None, **options: Any) -> Any:
        with self.set_save_options(format, options):
            return super().save_pretrained(save_directory, **options)

    def push_to_hub(self, repo_id: str, *, format: str | None = None, **options: Any) -> str:
        with self.set_save_options(format, options):
            return super().push_to_hub(repo_id, **options)

    @contextmanager
    def set_save_options(self, format: str | None, options: dict[str, Any]) -> Iterator[None]:
        """Move options of `save` to the model, since the mixin of the hub does not pass them on."""
        own = {name: options.pop(name) for name in OF_SAVE if name in options}
        before = vars(self).get('_write', {})
        self.__dict__['_write'] = {**before, **own, **({} if format is None else {'format': format})}
        try:
            yield
        finally:
            self.__dict__['_write'] = before

    def _save_pretrained(self, save_directory: Path) -> None:
        save(self, save_directory, **{'format': 'own', **vars(self).get('_write', {})})

    @classmethod
    def from_pretrained(cls, source: Any, **options: Any) -> Any:
        return load(source, cls=cls, **options)


OF_SAVE = ('hf_type', 'max_shard_size', 'generation', 'tokenizer_from')
