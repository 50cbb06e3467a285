"""The tables' files: paths, storage, manifests with their cache, facts, reachable sets."""
