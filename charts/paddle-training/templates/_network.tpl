{{/* Egress that every pod has: names, its storage, and what the person added. */}}
{{- define "paddle-training.egressCommon" -}}
# DNS servers sit at a place of each cluster's own, so the port is what limits.
- ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
{{- if has .Values.storage.type (list "efs-csi" "nfs") }}
- to: {{- include "paddle-training.blocks" .Values.networkPolicy.storageCidrs | trim | nindent 4 }}
  ports: [{port: 2049, protocol: TCP}]
{{- end }}
{{- with .Values.networkPolicy.extraEgress }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Egress that a source or an export needs. Takes (dict "root" $ "url" <the source or the target>). */}}
{{- define "paddle-training.egressUrl" -}}
{{- if regexMatch "^(https?|s3)://" .url }}
- to: {{- include "paddle-training.blocks" .root.Values.networkPolicy.sourceCidrs | trim | nindent 4 }}
  ports:
    - {port: 443, protocol: TCP}
    {{- if hasPrefix "http://" .url }}
    - {port: 80, protocol: TCP}
    {{- end }}
{{- end }}
{{- if hasPrefix "s3://" .url }}
# The node's pod identity agent, which hands out the role's credentials.
- to: [{ipBlock: {cidr: 169.254.170.23/32}}]
  ports: [{port: 80, protocol: TCP}]
{{- end }}
{{- end -}}

{{/* CIDRs as peers of a rule, never with the node's metadata service, which would hand out the node's role. */}}
{{- define "paddle-training.blocks" -}}
{{- range . }}
- ipBlock:
    cidr: {{ . | quote }}
    {{- if eq . "0.0.0.0/0" }}
    except: [169.254.169.254/32]
    {{- end }}
{{- end }}
{{- end -}}
